// Profile sessions: start one, list them, and show their reports.
import { ask, call } from "./api.js";
import { confirmation } from "./confirmation.js";
import { bytes, time, whole } from "./figures.js";
import { html, useEffect, useState } from "./html.js";
import { ActionButton, Dialog, download } from "./parts.js";
import { ProfileForm } from "./profile_form.js";

// Milliseconds between two updates of the list while a session is open.
const EVERY = 2000;
const PERFETTO = "https://ui.perfetto.dev";

const admin = (path, options) => ask(path, { admin: true, ...options });

export function Profiles({ query }) {
  const [sessions, setSessions] = useState(null);
  const [report, setReport] = useState(null);
  const [problem, setProblem] = useState("");
  const load = async () => {
    try {
      setSessions((await admin("v1/admin/profiles")).data.reverse());
      setProblem("");
    } catch (error) {
      setProblem(error.message);
    }
  };
  const isOpen = sessions?.some((session) => session.open);
  useEffect(() => { load(); }, []);
  useEffect(() => {
    if (!isOpen) return undefined;
    const timer = setInterval(() => document.hidden || load(), EVERY);
    return () => clearInterval(timer);
  }, [isOpen]);
  return html`<section aria-label="Begin a session"><h2>Profile some tokens</h2>
      <p class="soft">A session profiles the selected tokens, which slows them down, and stops by itself.</p>
      <${ProfileForm} query=${query} onBegun=${load} /></section>
    <section aria-label="Sessions"><h2>Sessions</h2>
      ${problem && html`<p class="error" role="alert">${problem}</p>`}
      ${sessions?.length === 0 && html`<p class="soft">Nothing was profiled yet.</p>`}
      ${sessions?.length > 0 && html`<div class="table" tabindex="0" role="region" aria-label="Table of sessions"><table>
        <thead><tr><th>session</th><th>model, device</th><th>state</th><th class="figure">tokens</th><th class="figure">slow ones</th>
          <th class="figure">step, others</th><th class="figure">files</th><th class="figure">size</th><th><span class="unseen">actions</span></th></tr></thead>
        <tbody>${sessions.map((session) => html`<${Session} key=${session.id} session=${session} onChange=${load} onReport=${setReport} />`)}</tbody>
      </table></div>`}</section>
    ${report && html`<${Report} ...${report} onClose=${() => setReport(null)} />`}`;
}

function Session({ session, onChange, onReport }) {
  const { id, profiled } = session;
  const path = `v1/admin/profiles/${encodeURIComponent(id)}`;
  const showReport = async () => {
    const page = await (await call(`${path}/report?format=html`, { admin: true })).blob();
    // The page of the report reads the colours from its address.
    onReport({ id, url: `${URL.createObjectURL(page)}#${window.theme.isDark ? "dark" : "light"}` });
  };
  const remove = async () => {
    const question = { title: "Delete this session?", text: `${id} and its files cannot be brought back.`, action: "Delete" };
    if (!session.open && !await confirmation.ask(question)) return;
    await admin(path, { method: "DELETE" });
    await onChange();
  };
  const trace = async () => (await call(`${path}/trace`, { admin: true })).blob();
  const steps = profiled?.step_ms ? `${time(profiled.step_ms)}, ${time(profiled.other_step_ms)}` : "–";
  return html`<tr><td><code>${id}</code><br /><span class="soft">${new Date(session.started * 1000).toLocaleString()}</span></td>
    <td>${session.model}, ${session.device}</td><td>${session.state}${session.reason ? html`<br /><span class="soft">${session.reason}</span>` : ""}</td>
    <td class="figure">${whole(profiled?.tokens)}</td><td class="figure">${whole(profiled?.triggers)}</td>
    <td class="figure">${steps}</td><td class="figure">${whole(session.files)}</td><td class="figure">${bytes(session.bytes)}</td>
    <td><div class="row-actions">
      ${session.files > 0 && html`<${ActionButton} action=${showReport}>Report<//>
        <${ActionButton} action=${async () => download(`${id}.trace.json`, await trace())}>Trace<//>
        <${ActionButton} action=${() => openInPerfetto(id, trace)} title="Opens ui.perfetto.dev, which reads the trace in this browser">Perfetto ↗<//>`}
      <${ActionButton} class="quiet" action=${remove}>${session.open ? "End" : "Delete"}<//></div></td></tr>`;
}

// The report is a separate page. Its frame may run its script, but cannot access this page.
function Report({ id, url, onClose }) {
  const close = () => {
    URL.revokeObjectURL(url.split("#")[0]);
    onClose();
  };
  return html`<${Dialog} title=${`Report of ${id}`} onClose=${close} wide>
    <p><a href=${url} target="_blank" rel="noopener">Open in a new tab</a></p>
    <iframe class="report" title=${`Report of ${id}`} src=${url} sandbox="allow-scripts"></iframe><//>`;
}

// Perfetto's page takes a trace by a message once it answers (https://perfetto.dev/docs/visualization/deep-linking-to-perfetto-ui).
async function openInPerfetto(title, trace) {
  const other = open(PERFETTO);
  if (!other) throw new Error("the browser did not open a tab: allow it, or take the file");
  const buffer = await (await trace()).arrayBuffer();
  const timer = setInterval(() => other.postMessage("PING", PERFETTO), 100);
  const onMessage = (event) => {
    if (event.origin !== PERFETTO || event.data !== "PONG") return;
    clearInterval(timer);
    removeEventListener("message", onMessage);
    other.postMessage({ perfetto: { buffer, title } }, PERFETTO);
  };
  addEventListener("message", onMessage);
  setTimeout(() => clearInterval(timer), 30_000);
}
