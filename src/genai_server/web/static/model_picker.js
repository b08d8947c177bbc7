// Chooses the model, or the adapter of one, for the next requests.
import { useChanges } from "./emitter.js";
import { html } from "./html.js";
import { models } from "./models.js";

const IN_WORDS = { ready: "", loading: "loading", unloading: "unloading", unloaded: "loaded on request", failed: "failed" };

export function ModelPicker() {
  useChanges(models);
  const chosen = models.chosen;
  if (!chosen) return html`<span class="soft">${models.error || "no model"}</span>`;
  const seconds = chosen.loading_seconds ? ` for ${Math.round(chosen.loading_seconds)} s` : "";
  return html`<span class="picker">
    <span class=${`dot ${chosen.state}`} aria-hidden="true"></span>
    <select aria-label="Model" value=${chosen.id} onChange=${(event) => models.choose(event.target.value)}
      onFocus=${() => models.load()} title=${chosen.error ?? ""}>
      ${models.list.map((model) => html`<option key=${model.id} value=${model.id}>${named(model)}</option>`)}
    </select>
    ${chosen.state !== "ready" && html`<span class="soft" role="status">${IN_WORDS[chosen.state]}${seconds}</span>`}
  </span>`;
}

function named(model) {
  const of = model.parent ? " (adapter)" : model.id === model.root ? "" : ` (${model.root})`;
  const state = IN_WORDS[model.state] ? `, ${IN_WORDS[model.state]}` : "";
  return `${model.id}${of}${state}`;
}
