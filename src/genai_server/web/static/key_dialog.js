// Asks for a key if the server requires one.
import { useChanges } from "./emitter.js";
import { html, useState } from "./html.js";
import { keys } from "./keys.js";
import { Dialog, Field } from "./parts.js";

const TITLES = { api: "API key", admin: "Admin key" };

export function KeyDialog() {
  useChanges(keys);
  return keys.question && html`<${Question} ...${keys.question} key=${keys.question.kind} />`;
}

function Question({ kind, reason }) {
  const [key, setKey] = useState("");
  const [isRemembered, setRemembered] = useState(false);
  const submit = (event) => {
    event.preventDefault();
    keys.answer(key.trim(), isRemembered);
  };
  return html`<${Dialog} title=${TITLES[kind]} onClose=${() => keys.question && keys.answer("")}>
    <form onSubmit=${submit}>
      <p>${reason}</p>
      <${Field} label=${TITLES[kind]} hint="Kept until this tab is closed.">
        <input type="password" autocomplete="off" spellcheck=${false} value=${key} autofocus
          onInput=${(event) => setKey(event.target.value)} /><//>
      <label class="check"><input type="checkbox" checked=${isRemembered} onChange=${(event) => setRemembered(event.target.checked)} />
        <span>Remember it on this device <span class="hint">everyone who uses this browser can then use the key, until
        “Forget keys”</span></span></label>
      <div class="actions"><button class="primary" disabled=${!key.trim()}>Use this key</button></div>
    </form><//>`;
}
