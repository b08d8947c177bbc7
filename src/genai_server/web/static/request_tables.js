// Running requests, and the last ones that have ended.
import { ask } from "./api.js";
import { time, whole } from "./figures.js";
import { html, useState } from "./html.js";
import { ActionButton } from "./parts.js";
import { MAX_ENDED, server } from "./server.js";

// Ended requests that are shown at first.
const FEW = 15;

const hasFailed = ({ status, error }) => status >= 400 || Boolean(error);
const isOf = (model) => (request) => !model || request.model === model || request.model.startsWith(`${model}:`);

// A column with the names of API keys is shown where requests have some.
const haveKeys = (requests) => requests.some((each) => each.key_name);
const keyTitle = () => html`<th>key</th>`;
const keyCell = ({ key_name: name }) => html`<td>${name ?? "–"}</td>`;

export function RunningRequests({ model }) {
  const found = server.requests.filter(isOf(model));
  const withKeys = haveKeys(found);
  return html`<section aria-label="Requests"><h2>${found.length} running request${found.length === 1 ? "" : "s"}</h2>
    ${found.length > 0 && html`<div class="table" tabindex="0" role="region" aria-label="Table of requests"><table>
      <thead><tr><th>request</th>${withKeys && keyTitle()}<th>model</th><th>device</th><th>phase</th><th class="figure">age</th>
        <th class="figure">prompt</th><th class="figure">cached</th><th class="figure">output</th><th><span class="unseen">actions</span></th></tr></thead>
      <tbody>${found.map((each, place) => html`<${RunningRequest} key=${`${each.unique_id} ${place}`} request=${each} withKeys=${withKeys} />`)}</tbody>
    </table></div>`}</section>`;
}

function RunningRequest({ request, withKeys }) {
  const cancel = async () => {
    await ask(`v1/requests/${encodeURIComponent(request.unique_id)}/cancel`, { method: "POST", body: {}, admin: true });
    await server.refresh();
  };
  return html`<tr><td><code>${request.id}</code></td>${withKeys && keyCell(request)}<td>${request.model}</td><td>${request.device}</td>
    <td>${request.phase}</td><td class="figure">${time(request.age * 1000)}</td>
    <td class="figure">${whole(request.prompt_tokens)}</td><td class="figure">${whole(request.cached_tokens)}</td>
    <td class="figure">${whole(request.output_tokens)}</td>
    <td><${ActionButton} action=${cancel} aria-label=${`Cancel ${request.id}`}>Cancel<//></td></tr>`;
}

export function EndedRequests({ model }) {
  const [areOnlyFailed, setOnlyFailed] = useState(false);
  const [areAll, setAll] = useState(false);
  const found = server.ended.filter(isOf(model));
  const failed = found.filter(hasFailed);
  const listed = areOnlyFailed ? failed : found;
  const withKeys = haveKeys(found);
  const sum = (name) => whole(found.reduce((all, each) => all + each[name], 0));
  return html`<section aria-label="Ended requests"><h2>Last requests</h2>
    <div class="totals"><span>${found.length} ended</span><span class=${failed.length ? "error" : ""}>${failed.length} failed</span>
      <span>${sum("prompt_tokens")} prompt tokens</span><span>${sum("output_tokens")} output tokens</span>
      ${failed.length > 0 && html`<label class="check"><input type="checkbox" checked=${areOnlyFailed}
        onChange=${(event) => setOnlyFailed(event.target.checked)} /> Failed only</label>`}</div>
    ${listed.length > 0 && html`<div class="table" tabindex="0" role="region" aria-label="Table of ended requests"><table>
      <thead><tr><th>ended</th><th>request</th>${withKeys && keyTitle()}<th>model</th><th>endpoint</th><th>result</th><th class="figure">time</th>
        <th class="figure">first token</th><th class="figure">prompt</th><th class="figure">cached</th><th class="figure">output</th></tr></thead>
      <tbody>${listed.slice(0, areAll ? undefined : FEW).map((each) => html`<${EndedRequest} key=${each.unique_id} request=${each} withKeys=${withKeys} />`)}</tbody>
    </table></div>`}
    ${listed.length > FEW && html`<button type="button" class="quiet" aria-expanded=${areAll} onClick=${() => setAll(!areAll)}>
      ${areAll ? "Show fewer" : `Show all ${listed.length}`}</button>`}
    <p class="soft">The server keeps the last ${MAX_ENDED} requests until it stops, without their texts.</p></section>`;
}

function EndedRequest({ request, withKeys }) {
  const result = request.error ? `${request.status} ${request.error}` : request.finish_reason || request.status;
  return html`<tr><td>${new Date(request.ended * 1000).toLocaleTimeString("en", { hourCycle: "h23" })}</td>
    <td><code title=${request.unique_id}>${short(request.id)}</code></td>${withKeys && keyCell(request)}<td>${request.model}</td><td>${request.path}</td>
    <td class=${hasFailed(request) ? "error" : ""}>${result}</td>
    <td class="figure">${time(request.seconds * 1000)}</td>
    <td class="figure">${request.ttft === null ? "–" : time(request.ttft * 1000)}</td>
    <td class="figure">${whole(request.prompt_tokens)}</td><td class="figure">${whole(request.cached_tokens)}</td>
    <td class="figure">${whole(request.output_tokens)}</td></tr>`;
}

const short = (id) => (id.length > 14 ? `${id.slice(0, 13)}…` : id);
