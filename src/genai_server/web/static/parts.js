// Small parts that several views share.
import { html, useEffect, useRef, useState } from "./html.js";

// A button that copies a text, and confirms it.
export function CopyButton({ text, label = "Copy", class: kind = "quiet" }) {
  const [isCopied, setCopied] = useState(false);
  const copy = async () => {
    await copyText(text());
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  return html`<button type="button" class=${kind} onClick=${copy}>${isCopied ? "Copied" : label}</button>`;
}

// Outside of HTTPS and localhost there is no clipboard, but the older way still works.
export async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

// A modal dialog; Escape and a click outside close it.
export function Dialog({ title, onClose, children, wide }) {
  const dialog = useRef();
  useEffect(() => { dialog.current.showModal(); }, []);
  const onClick = (event) => { if (event.target === dialog.current) dialog.current.close(); };
  return html`<dialog ref=${dialog} class=${wide ? "wide" : ""} onClose=${onClose} onClick=${onClick}
      aria-label=${title}>
    <div class="dialog-body">
      <div class="dialog-head"><h2>${title}</h2>
        <button type="button" class="quiet" aria-label="Close" onClick=${() => dialog.current.close()}>✕</button></div>
      ${children}
    </div>
  </dialog>`;
}

// A button with actions, which close it, as do Escape and all that happens elsewhere.
export function Menu({ label, children }) {
  const menu = useRef();
  const close = () => menu.current?.removeAttribute("open");
  const onToggle = () => {
    if (!menu.current.open) return;
    const over = new AbortController();
    const onElsewhere = ({ target }) => { if (!menu.current?.contains(target)) end(); };
    const end = () => {
      close();
      over.abort();
    };
    addEventListener("pointerdown", onElsewhere, { signal: over.signal });
    addEventListener("focusin", onElsewhere, { signal: over.signal });
  };
  const onKeyDown = (event) => {
    if (event.key !== "Escape" || !menu.current.open) return;
    event.stopPropagation();
    close();
    menu.current.querySelector("summary").focus();
  };
  return html`<details class="menu" ref=${menu} onToggle=${onToggle} onKeyDown=${onKeyDown}>
    <summary aria-label=${label} title=${label}>⋯</summary><div class="menu-items" onClick=${close}>${children}</div></details>`;
}

// A `ref` that puts the cursor into an element as soon as it is there.
export const focused = (element) => element?.focus();

// A labelled field of a form.
export function Field({ label, hint, children, class: kind = "" }) {
  return html`<label class=${`field ${kind}`}><span class="label">${label}</span>${children}
    ${hint && html`<span class="hint">${hint}</span>`}</label>`;
}

// A button that does something slow, and shows what went wrong.
export function ActionButton({ action, children, class: kind = "", ...rest }) {
  const [state, setState] = useState({ busy: false, error: "" });
  const run = async () => {
    setState({ busy: true, error: "" });
    try {
      await action();
      setState({ busy: false, error: "" });
    } catch (error) {
      setState({ busy: false, error: error.message });
    }
  };
  return html`<button type="button" class=${kind} disabled=${state.busy} onClick=${run} ...${rest}>${children}</button>
    ${state.error && html`<span class="error" role="alert">${state.error}</span>`}`;
}

// Downloads a file to the reader's device.
export function download(name, text, type = "application/json") {
  const url = URL.createObjectURL(text instanceof Blob ? text : new Blob([text], { type }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
