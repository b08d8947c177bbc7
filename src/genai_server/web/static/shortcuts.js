// The list of keyboard shortcuts, which "?" opens.
import { html, useEffect, useState } from "./html.js";
import { IconButton } from "./icons.js";
import { Dialog } from "./parts.js";

const SHORTCUTS = [
  ["Enter", "Send the message"],
  ["Shift Enter", "Begin a new line"],
  ["↑", "Edit the last message, if the new one is empty"],
  ["Ctrl Enter", "Save an edit"],
  ["Escape", "Stop the answer, or close what is open"],
  ["Ctrl K", "Search chats"],
  ["Alt N", "New chat"],
  ["?", "Show this list"],
];

const isTyping = ({ target }) => target.matches("input, select, textarea");

export function Shortcuts() {
  const [isShown, setShown] = useState(false);
  useEffect(() => {
    const onKeyDown = (event) => { if (event.key === "?" && !isTyping(event)) setShown(true); };
    addEventListener("keydown", onKeyDown);
    return () => removeEventListener("keydown", onKeyDown);
  }, []);
  return html`<${IconButton} icon="keyboard" label="Keyboard shortcuts" class="not-narrow" onClick=${() => setShown(true)} />
    ${isShown && html`<${Dialog} title="Keyboard shortcuts" onClose=${() => setShown(false)}>
      <dl class="shortcuts">${SHORTCUTS.map(([keys, action]) => html`<div key=${keys}><dt>${keys.split(" ").map((key) => html`<kbd>${key}</kbd>`)}</dt>
        <dd>${action}</dd></div>`)}</dl><//>`}`;
}
