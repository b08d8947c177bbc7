// Line icons of 16 by 16 units, and buttons that have one instead of words.
import { html } from "./html.js";

const SHAPES = {
  attach: "M13 7.5 8 12.4a3 3 0 0 1-4.3-4.3l5.2-5.1a2 2 0 0 1 2.9 2.8l-5.2 5.1a1 1 0 0 1-1.4-1.4l4.7-4.6",
  branch: "M4 5v6.2M12 7c0 2.8-8 1.6-8 4.2M4 2a1.5 1.5 0 1 1 0 3 1.5 1.5 0 0 1 0-3ZM12 4a1.5 1.5 0 1 1 0 3 1.5 1.5 0 0 1 0-3ZM4 11a1.5 1.5 0 1 1 0 3 1.5 1.5 0 0 1 0-3Z",
  check: "m3 8.5 3.2 3L13 4.5",
  chats: "M2.5 4h11M2.5 8h11M2.5 12h11",
  code: "M5.5 4.5 2 8l3.5 3.5M10.5 4.5 14 8l-3.5 3.5",
  continue: "m5 3.5 7 4.5-7 4.5Z",
  copy: "M7 5.5h5A1.5 1.5 0 0 1 13.5 7v5a1.5 1.5 0 0 1-1.5 1.5H7A1.5 1.5 0 0 1 5.5 12V7A1.5 1.5 0 0 1 7 5.5ZM10.5 5.5V4A1.5 1.5 0 0 0 9 2.5H4A1.5 1.5 0 0 0 2.5 4v5A1.5 1.5 0 0 0 4 10.5h1.5",
  edit: "M11.2 2.8a1.4 1.4 0 0 1 2 2L5.5 12.5l-3 .9.9-3Z",
  figures: "M8 2.2a5.8 5.8 0 1 1 0 11.6A5.8 5.8 0 0 1 8 2.2ZM8 7.4V11M8 5v.1",
  inspect: "M7 2.7a4.3 4.3 0 1 1 0 8.6 4.3 4.3 0 0 1 0-8.6ZM10.3 10.3l3.2 3.2",
  keyboard: "M2.5 4.5h11a1 1 0 0 1 1 1v5a1 1 0 0 1-1 1h-11a1 1 0 0 1-1-1v-5a1 1 0 0 1 1-1ZM4.2 7h.1M6.7 7h.1M9.2 7h.1M11.7 7h.1M5 9.2h6",
  microphone: "M8 1a2.5 2.5 0 0 1 2.5 2.5v4a2.5 2.5 0 0 1-5 0v-4A2.5 2.5 0 0 1 8 1ZM3 7.5a5 5 0 0 0 10 0M8 12.5V15",
  regenerate: "M12.9 6.3A5.2 5.2 0 1 0 13.2 9M13.2 2.8v3.7H9.5",
  remove: "M3 4.5h10M6.5 4.5V3h3v1.5M4.5 4.5l.6 8.5h5.8l.6-8.5M7 7v4M9 7v4",
  settings: "M2.5 5h6.8M12.4 5h1.1M2.5 11h1.1M6.7 11h6.8M10.8 3.5a1.5 1.5 0 1 1 0 3 1.5 1.5 0 0 1 0-3ZM5.2 9.5a1.5 1.5 0 1 1 0 3 1.5 1.5 0 0 1 0-3Z",
};

export function Icon({ name }) {
  return html`<svg class="icon" viewBox="0 0 16 16" aria-hidden="true"><path d=${SHAPES[name]} /></svg>`;
}

export function IconButton({ icon, label, title = label, class: kind = "", ...rest }) {
  return html`<button type="button" class=${`quiet icon-button ${kind}`} aria-label=${label} title=${title} ...${rest}>
    <${Icon} name=${icon} /></button>`;
}
