// Where the reader writes. Enter sends, Shift+Enter makes a line, Escape stops the answer.
import { html, useEffect, useLayoutEffect, useRef, useState } from "./html.js";

export function Composer({ isBusy, problem, onSend, onStop, chatId }) {
  const [text, setText] = useState("");
  const area = useRef();
  useEffect(() => { area.current.focus({ preventScroll: true }); }, [chatId]);
  useLayoutEffect(() => {
    area.current.style.height = "auto";
    area.current.style.height = `${Math.min(area.current.scrollHeight + 2, 240)}px`;
  }, [text]);
  const send = () => {
    if (isBusy || !text.trim()) return;
    if (onSend(text)) setText("");
  };
  const onKeyDown = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    }
  };
  return html`<form class="composer" onSubmit=${(event) => { event.preventDefault(); send(); }}>
    ${problem && html`<p class="error" role="alert">${problem}</p>`}
    <div class="composer-box">
      <textarea ref=${area} rows="1" aria-label="Message" placeholder="Write a message" value=${text}
        onInput=${(event) => setText(event.target.value)} onKeyDown=${onKeyDown}></textarea>
      ${isBusy ? html`<button type="button" class="primary" onClick=${onStop}>Stop</button>`
        : html`<button class="primary" disabled=${!text.trim()}>Send</button>`}
    </div></form>`;
}
