// The attachments of a message: thumbnails that open the image, recordings to listen to, and texts that unfold.
import { isSound } from "./attachments.js";
import { html, useState } from "./html.js";
import { Dialog } from "./parts.js";

// `onRemove` gets the attachments without one; without it they stay.
export function AttachmentList({ attachments = [], onRemove }) {
  const [open, setOpen] = useState(null);
  if (!attachments.length) return null;
  return html`<ul class="attachments" aria-label="Attachments">
    ${attachments.map((each, place) => html`<li key=${place}>
      ${isSound(each) ? html`<figure class="file sound"><figcaption>${each.name}</figcaption>
          <audio controls preload="metadata" src=${each.url} aria-label=${each.name}></audio></figure>`
        : each.url ? html`<button type="button" class="thumbnail" title=${each.name} onClick=${() => setOpen(each)}>
          <img src=${each.url} alt=${each.name} /></button>`
        : each.text === undefined ? html`<span class="soft">${each.name} is not kept</span>`
        : html`<details class="file"><summary>${each.name}</summary><pre tabindex="0">${each.text}</pre></details>`}
      ${onRemove && html`<button type="button" class="remove" aria-label=${`Remove ${each.name}`} title="Remove"
        onClick=${() => onRemove(attachments.filter((other) => other !== each))}>✕</button>`}
    </li>`)}</ul>
    ${open && html`<${Dialog} title=${open.name} wide onClose=${() => setOpen(null)}>
      <img class="whole" src=${open.url} alt=${open.name} />
      <p class="actions"><a href=${open.url} download=${open.name}>Save</a></p><//>`}`;
}
