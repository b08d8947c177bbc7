// An answer's Markdown on the page.
import { html, useMemo } from "./html.js";
import { blocks } from "./markdown.js";
import { copyText } from "./parts.js";

export function MarkdownView({ text, isWriting }) {
  const onClick = (event) => {
    const button = event.target.closest(".copy-code");
    if (!button) return;
    copyText(button.closest(".code").querySelector("code").textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  };
  const found = useMemo(() => blocks(text), [text]);
  return html`<div class=${`markdown${isWriting ? " growing" : ""}`} onClick=${onClick}>${found.map((block, place) =>
    html`<div key=${place} dangerouslySetInnerHTML=${{ __html: block }}></div>`)}</div>`;
}
