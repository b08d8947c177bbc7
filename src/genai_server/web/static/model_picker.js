// Chooses the model, or the adapter of one, for the next requests.
import { connection } from "./connection.js";
import { useChanges } from "./emitter.js";
import { html, useState } from "./html.js";
import { Icon } from "./icons.js";
import { ModelCard } from "./model_card.js";
import { models, purpose } from "./models.js";

const IN_WORDS = { ready: "", loading: "loading", unloading: "unloading", unloaded: "loaded on request" };

export function ModelPicker() {
  useChanges(models, connection);
  const [isCardOpen, setCardOpen] = useState(false);
  const { chosen, talking } = models;
  const state = connection.isLost ? "unknown" : chosen?.state;
  const others = models.list.filter((model) => !["chats", ""].includes(purpose(model)));
  if (!chosen) return html`<${Nothing} others=${others} />`;
  const seconds = chosen.loading_seconds ? ` for ${Math.round(chosen.loading_seconds)} s` : "";
  return html`<span class="picker">
    <button type="button" class="quiet about" aria-label="About this model" title="About this model" onClick=${() => setCardOpen(true)}>
      <span class=${`dot ${state}`} aria-hidden="true"></span><span class="not-narrow"><${Icon} name="figures" /></span></button>
    <select aria-label="Model" value=${chosen.id} onChange=${(event) => models.choose(event.target.value)}
      onFocus=${() => models.load()} title=${chosen.error ?? ""}>
      ${talking.map((model) => html`<option key=${model.id} value=${model.id}>${named(model)}</option>`)}
      ${others.length > 0 && html`<optgroup label="Not for chats">
        ${others.map((model) => html`<option key=${model.id} disabled>${inWords(model)}</option>`)}</optgroup>`}
    </select>
    ${isCardOpen && html`<${ModelCard} model=${chosen} onClose=${() => setCardOpen(false)} />`}
    ${IN_WORDS[state] && html`<span class="soft" role="status">${IN_WORDS[state]}${seconds}</span>`}
  </span>`;
}

function Nothing({ others }) {
  if (models.needsKey) return html`<button type="button" class="small" onClick=${() => models.load()}>Enter the API key</button>`;
  const reason = models.error || (models.isKnown ? ["No model for chats", ...others.map(inWords)].join(", ") : "Loading models …");
  return html`<span class="soft">${reason}</span>`;
}

const inWords = (model) => `${model.id} (${purpose(model)})`;

function named(model) {
  const of = model.parent ? " (adapter)" : "";
  const state = IN_WORDS[model.state] ? `, ${IN_WORDS[model.state]}` : "";
  return `${model.id}${of}${state}`;
}
