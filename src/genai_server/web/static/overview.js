// Devices, charts of the last minutes, and requests.
import { Chart } from "./chart.js";
import { connection } from "./connection.js";
import { share, whole } from "./figures.js";
import { html, useState } from "./html.js";
import { EndedRequests, RunningRequests } from "./request_tables.js";
import { server } from "./server.js";

export function Overview() {
  const [chosen, setChosen] = useState("");
  const names = [...new Set(server.devices.map(({ model }) => model))];
  // A model may be unloaded while it is chosen.
  const model = names.includes(chosen) ? chosen : "";
  return html`<${Devices} model=${model}>
      ${names.length > 1 && html`<label class="filter"><span class="soft">Model</span><select value=${model}
        onChange=${(event) => setChosen(event.target.value)}><option value="">all</option>
        ${names.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}</select></label>`}<//>
    ${server.noMetrics ? html`<p class="soft">${server.noMetrics}</p>` : html`<${Charts} model=${model} />`}
    ${server.isAdmin && html`<${RunningRequests} model=${model} /><${EndedRequests} model=${model} />`}`;
}

function Devices({ model, children }) {
  const shown = server.devices.filter((each) => !model || each.model === model);
  return html`<section aria-label="Devices"><div class="section-head"><h2>Devices</h2>${children}</div><div class="cards">
    ${shown.map((each) => html`<${Device} key=${`${each.model} ${each.device}`} ...${each} />`)}</div></section>`;
}

function Device({ model, device, status }) {
  const state = connection.isLost ? "unknown" : status.terminated ? "terminated" : status.state;
  const { slots, kv_usage: cache = null } = server.history.latest(model, device) ?? {};
  const facts = [
    ["running", status.running === undefined ? null : `${whole(status.running)}${slots ? ` of ${whole(slots)}` : ""}`],
    ["waiting", status.waiting === undefined ? null : whole(status.waiting)],
    ["cache in use", cache === null ? null : share(cache)],
    ["cache holds", status.batching?.kv_tokens ? `${whole(status.batching.kv_tokens)} tokens` : null],
    ["restarts", status.restarts ? whole(status.restarts) : null],
  ].filter(([, value]) => value !== null);
  return html`<article class="card"><h3><span class=${`dot ${state}`} aria-hidden="true"></span> ${model || device}
      ${" "}${model && html`<span class="soft">${device}</span>`}</h3>
    <p class="state">${state}</p>
    ${facts.length > 0 && html`<dl>${facts.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`}
    ${cache !== null && html`<meter min="0" max="1" high="0.9" value=${cache} aria-label="Cache in use"></meter>`}
    ${status.error && html`<p class="error">${status.error}</p>`}</article>`;
}

function Charts({ model }) {
  const { times, output, prompt, ttft, gap, gap95, running, waiting, hits } = server.history.columns(model);
  if (times.length < 2) return html`<p class="soft">The charts begin a few seconds after the server.</p>`;
  const line = (name, values, colour) => ({ name, values, colour });
  return html`<section aria-label="Charts" class="charts">
    <${Chart} title="Tokens" unit="/s" times=${times} lines=${[line("answers", output, "accent"), line("prompts", prompt, "warn")]} />
    <${Chart} title="First token" unit="ms" times=${times} lines=${[line("mean", ttft, "accent")]} />
    <${Chart} title="Token gap" unit="ms" times=${times} lines=${[line("mean", gap, "accent"), line("95 %", gap95, "warn")]} />
    <${Chart} title="Requests" unit="" digits=${0} times=${times} lines=${[line("running", running, "accent"), line("waiting", waiting, "warn")]} />
    <${Chart} title="Cache hits" unit="%" digits=${0} times=${times} lines=${[line("prompt tokens", hits, "accent")]} />
  </section>`;
}
