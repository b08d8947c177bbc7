// An answer's Markdown on the page.
import { useChanges } from "./emitter.js";
import { typeset } from "./formulas.js";
import { html, useLayoutEffect, useMemo, useRef } from "./html.js";
import { highlighter, katex } from "./libraries.js";
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
  useChanges(highlighter, katex);
  const found = useMemo(() => blocks(text), [text, highlighter.now]);
  const shown = useRef();
  useLayoutEffect(() => typeset(shown.current), [found, katex.now]);
  return html`<div ref=${shown} class=${`markdown${isWriting ? " growing" : ""}`} onClick=${onClick}>${found.map((block, place) =>
    html`<div key=${place} dangerouslySetInnerHTML=${{ __html: block }}></div>`)}</div>`;
}
