// What is known about the chosen model.
import { useChanges } from "./emitter.js";
import { bytes, whole } from "./figures.js";
import { html, useEffect } from "./html.js";
import { isToy, models } from "./models.js";
import { Dialog } from "./parts.js";

const ABILITIES = { completion: "text", insert: "filling gaps", tools: "tool calls", vision: "images", audio: "recordings", thinking: "reasoning" };

export function ModelCard({ model, onClose }) {
  useChanges(models);
  useEffect(() => { models.loadDetails(); }, []);
  const { size_bytes: size, architecture } = models.details(model);
  const others = models.list.filter(({ id, root, parent }) => id !== model.id && root === model.root && !parent).map(({ id }) => id);
  const facts = [
    ["state", model.state],
    ["adapter of", model.parent],
    ["also known as", others.join(", ")],
    ["family", architecture],
    ["size", size ? `${bytes(size)}${isToy(model) ? ", a toy to try the server with" : ""}` : ""],
    ["context", model.max_model_len ? `${whole(model.max_model_len)} tokens` : ""],
    ["input and output", (model.capabilities ?? []).map((each) => ABILITIES[each] ?? each).join(", ")],
    ["served since", model.created ? new Date(model.created * 1000).toLocaleString() : ""],
    ["problem", model.error],
  ].filter(([, value]) => value);
  return html`<${Dialog} title=${model.id} onClose=${onClose}><dl class="facts-list">
    ${facts.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl><//>`;
}
