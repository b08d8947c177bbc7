// Devices, live charts and running requests.
import { ask } from "./api.js";
import { connection } from "./connection.js";
import { Chart } from "./chart.js";
import { share, time, whole } from "./figures.js";
import { html } from "./html.js";
import { ActionButton } from "./parts.js";
import { server } from "./server.js";

export function Overview() {
  return html`<${Devices} />
    ${server.noMetrics ? html`<p class="soft">${server.noMetrics}</p>` : html`<${Charts} />`}
    ${server.isAdmin && html`<${Requests} />`}`;
}

function Devices() {
  return html`<section aria-label="Devices"><h2>Devices</h2><div class="cards">
    ${server.devices.map((each) => html`<${Device} key=${`${each.model} ${each.device}`} ...${each} />`)}</div></section>`;
}

function Device({ model, device, status }) {
  const state = connection.isLost ? "unknown" : status.terminated ? "terminated" : status.state;
  const labels = { model_name: model, device };
  const slots = server.metrics?.sum("num_slots", labels);
  const cache = server.metrics?.sum("kv_cache_usage_perc", labels) ?? null;
  const facts = [
    ["running", status.running === undefined ? null : `${whole(status.running)}${slots ? ` of ${whole(slots)}` : ""}`],
    ["waiting", status.waiting === undefined ? null : whole(status.waiting)],
    ["cache in use", cache === null ? null : share(cache)],
    ["cache holds", status.batching?.kv_tokens ? `${whole(status.batching.kv_tokens)} tokens` : null],
    ["restarts", status.restarts ? whole(status.restarts) : null],
  ].filter(([, value]) => value !== null);
  return html`<article class="card"><h3><span class=${`dot ${state}`} aria-hidden="true"></span> ${device}
      <span class="soft">${model}</span></h3>
    <p class="state">${state}</p>
    ${facts.length > 0 && html`<dl>${facts.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`}
    ${cache !== null && html`<meter min="0" max="1" high="0.9" value=${cache} aria-label="Cache in use"></meter>`}
    ${status.error && html`<p class="error">${status.error}</p>`}</article>`;
}

function Charts() {
  const { times, output, prompt, ttft, gap, gap95, running, waiting, hits } = server.series;
  if (times.length < 2) return html`<p class="soft">The charts begin in a few seconds.</p>`;
  const line = (name, values, colour) => ({ name, values, colour });
  return html`<section aria-label="Charts" class="charts">
    <${Chart} title="Tokens" unit="/s" times=${times} lines=${[line("answers", output, "accent"), line("prompts", prompt, "warn")]} />
    <${Chart} title="Time to the first token" unit="ms" times=${times} lines=${[line("mean", ttft, "accent")]} />
    <${Chart} title="Gap between tokens" unit="ms" times=${times} lines=${[line("mean", gap, "accent"), line("95 %", gap95, "warn")]} />
    <${Chart} title="Requests" unit="" digits=${0} times=${times} lines=${[line("running", running, "accent"), line("waiting", waiting, "warn")]} />
    <${Chart} title="Prompt tokens found in the cache" unit="%" digits=${0} times=${times} lines=${[line("hits", hits, "accent")]} />
  </section>`;
}

function Requests() {
  return html`<section aria-label="Requests"><h2>${server.requests.length} request${server.requests.length === 1 ? "" : "s"}</h2>
    ${server.requests.length > 0 && html`<div class="table" tabindex="0" role="region" aria-label="Table of requests"><table>
      <thead><tr><th>request</th><th>model</th><th>device</th><th>phase</th><th class="figure">age</th>
        <th class="figure">prompt</th><th class="figure">cached</th><th class="figure">output</th><th><span class="unseen">actions</span></th></tr></thead>
      <tbody>${server.requests.map((each, place) => html`<${Request} key=${`${each.unique_id} ${place}`} ...${each} />`)}</tbody>
    </table></div>`}</section>`;
}

function Request(request) {
  const cancel = async () => {
    await ask(`v1/requests/${encodeURIComponent(request.unique_id)}/cancel`, { method: "POST", body: {}, admin: true });
    await server.refresh();
  };
  return html`<tr><td><code>${request.id}</code></td><td>${request.model}</td><td>${request.device}</td>
    <td>${request.phase}</td><td class="figure">${time(request.age * 1000)}</td>
    <td class="figure">${whole(request.prompt_tokens)}</td><td class="figure">${whole(request.cached_tokens)}</td>
    <td class="figure">${whole(request.output_tokens)}</td>
    <td><${ActionButton} action=${cancel} aria-label=${`Cancel ${request.id}`}>Cancel<//></td></tr>`;
}
