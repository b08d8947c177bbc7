// The form of the request's options.
import { useChanges } from "./emitter.js";
import { html } from "./html.js";
import { NUMBERS, options } from "./options.js";
import { Field } from "./parts.js";

const EFFORTS = ["", "none", "minimal", "low", "medium", "high"];

export function OptionsPanel() {
  useChanges(options);
  return html`<div class="panel-body">
    <${Text} name="system" label="System prompt" rows="3" />
    <div class="grid">${NUMBERS.map((field) => html`<${NumberField} key=${field.name} ...${field} />`)}
      <${Field} label="Reasoning effort" hint="for models that know it">
        <select value=${options.get("reasoning_effort")}
          onChange=${(event) => options.set("reasoning_effort", event.target.value)}>
          ${EFFORTS.map((effort) => html`<option key=${effort} value=${effort}>${effort || "not given"}</option>`)}
        </select><//>
    </div>
    <${Text} name="stop" label="Stop texts" rows="2" hint="one to a line, up to four; they end the answer" />
    <${Check} name="ignore_eos" label="Continue after the end of the answer" hint="up to the maximum tokens" />
    <${Check} name="logprobs" label="Token probabilities" hint="needed to colour tokens by probability" />
    <${Text} name="schema" label="JSON schema of the answer" rows="4" code
      placeholder='{"type": "object", "properties": {"mood": {"type": "string"}}}' />
    <${Text} name="tools" label="Tools" rows="4" code hint="a list as the API takes it, in JSON"
      placeholder='[{"type": "function", "function": {"name": "get_weather"}}]' />
    <div class="actions"><button type="button" class="quiet" onClick=${() => options.clear()}>Clear all</button></div>
  </div>`;
}

function NumberField({ name, label, hint, ...limits }) {
  return html`<${Field} label=${label} hint=${hint}>
    <input type="number" inputmode="decimal" placeholder="default" value=${options.get(name)} ...${limits}
      onInput=${(event) => options.set(name, event.target.value)} /><//>`;
}

function Text({ name, label, hint, code, ...rest }) {
  return html`<${Field} label=${label} hint=${hint}>
    <textarea class=${code ? "code-input" : ""} spellcheck=${!code} value=${options.get(name)} ...${rest}
      onInput=${(event) => options.set(name, event.target.value)}></textarea><//>`;
}

function Check({ name, label, hint }) {
  return html`<label class="check"><input type="checkbox" checked=${Boolean(options.get(name))}
    onChange=${(event) => options.set(name, event.target.checked)} />
    <span>${label} <span class="hint">${hint}</span></span></label>`;
}
