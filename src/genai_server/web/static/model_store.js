// Models on the server's disk, and fetching others from the hub.
import { ask } from "./api.js";
import { downloads } from "./downloads.js";
import { useChanges } from "./emitter.js";
import { bytes, time } from "./figures.js";
import { html, useEffect, useState } from "./html.js";
import { models } from "./models.js";
import { ActionButton, Field } from "./parts.js";
import { go } from "./place.js";

// Repositories to begin with, by the memory of the machine in GB.
const SUGGESTED = [
  { memory: 8, repository: "microsoft/Phi-3-mini-4k-instruct-onnx", what: "3.8 billion parameters, short chats" },
  { memory: 8, repository: "onnx-community/all-MiniLM-L6-v2-ONNX", what: "embeddings" },
  { memory: 16, repository: "microsoft/Phi-4-mini-instruct-onnx", what: "3.8 billion parameters, tools, long chats" },
  { memory: 16, repository: "microsoft/mistral-7b-instruct-v0.2-ONNX", what: "7 billion parameters" },
  { memory: 32, repository: "microsoft/Phi-3-medium-4k-instruct-onnx-cpu", what: "14 billion parameters" },
];

const admin = (path, options) => ask(path, { admin: true, ...options });

export function ModelStore() {
  useChanges(models, downloads);
  const [store, setStore] = useState(null);
  const [problem, setProblem] = useState("");
  const load = async () => {
    try {
      setStore(await admin("v1/admin/models/stored"));
      setProblem("");
    } catch (error) {
      setProblem(error.message);
    }
  };
  const served = models.list.map(({ id }) => id).join();
  const numDone = [...downloads.all.values()].filter(({ isDone }) => isDone).length;
  useEffect(() => { load(); }, [served, numDone]);
  return html`<section aria-label="On this server"><h2>On this server</h2>
      ${problem && html`<p class="error" role="alert">${problem}</p>`}
      ${store && html`<p class="soft">Models in <code>${store.directory}</code>${store.data.length ? "" : ": none yet"}</p>`}
      ${store?.data.length > 0 && html`<div class="table" tabindex="0" role="region" aria-label="Table of stored models"><table>
        <thead><tr><th>directory</th><th>from</th><th class="figure">size</th><th>served as</th><th><span class="unseen">actions</span></th></tr></thead>
        <tbody>${store.data.map((each) => html`<${Stored} key=${each.id} model=${each} />`)}</tbody></table></div>`}</section>
    <${Hub} isNew=${store?.data.length === 0} memory=${store?.memory} />`;
}

function Stored({ model }) {
  const load = async () => {
    // A name of a served model is taken: the directory's own is free.
    const [source] = (model.source ?? model.id).split(":");
    const name = models.list.some(({ id }) => id === source) ? model.id : source;
    await admin("v1/admin/models/load", { method: "POST", body: { name, path: model.path, wait: false } });
    await models.follow();
  };
  return html`<tr><td class="name">${model.id}</td><td class="name">${model.source ?? "–"}</td><td class="figure">${bytes(model.size)}</td>
    <td class="name">${model.served ?? "–"}</td>
    <td>${model.served ? html`<${ChatWith} name=${model.served} />` : html`<${ActionButton} action=${load} aria-label=${`Load ${model.id}`}>Load<//>`}</td></tr>`;
}

function ChatWith({ name }) {
  const model = models.called(name);
  const chat = () => {
    models.choose(model.id);
    go("chat");
  };
  return model && html`<button type="button" class="small" onClick=${chat}>Chat with it</button>`;
}

const GB = 1024 ** 3;

// The variants with those for this server first.
function ordered(variants) {
  const rank = ({ for_device: isFor, fits }) => (fits === false ? 2 : isFor ? 0 : 1);
  return [...variants].sort((one, other) => rank(one) - rank(other));
}

function Hub({ isNew, memory }) {
  const [repository, setRepository] = useState("");
  const [found, setFound] = useState(null);
  const [state, setState] = useState({ isBusy: false, problem: "" });
  const look = async (name) => {
    setRepository(name);
    setFound(null);
    setState({ isBusy: true, problem: "" });
    try {
      setFound(await admin(`v1/admin/models/variants?repository=${encodeURIComponent(name.trim())}`));
      setState({ isBusy: false, problem: "" });
    } catch (error) {
      setState({ isBusy: false, problem: error.message });
    }
  };
  const submit = (event) => {
    event.preventDefault();
    look(repository);
  };
  const waiting = [...downloads.all.values()].filter(({ name }) => !found?.data.some((each) => each.name === name));
  return html`<section aria-label="Fetch a model"><h2>Fetch a model from Hugging Face</h2>
    <form class="look-up" onSubmit=${submit}><${Field} label="Repository" hint="with a model for onnxruntime-genai, or an encoder as ONNX">
        <input value=${repository} required placeholder="OWNER/NAME" spellcheck=${false}
          onInput=${(event) => setRepository(event.target.value)} /><//>
      <button class="primary" disabled=${state.isBusy}>${state.isBusy ? "Looking …" : "Look it up"}</button></form>
    ${state.problem && html`<p class="error" role="alert">${state.problem}</p>`}
    ${found && html`<ul class="variants" aria-label=${`Models of ${found.repository}`}>
      ${ordered(found.data).map((each) => html`<${Variant} key=${each.name} total=${memory} ...${each} />`)}</ul>`}
    ${waiting.length > 0 && html`<ul class="variants" aria-label="Downloads">
      ${waiting.map(({ name, total }) => html`<${Variant} key=${name} name=${name} size=${total} />`)}</ul>`}
    <details class="suggested" open=${isNew}><summary>Models to begin with</summary><ul>${SUGGESTED.map((each) => html`
      <li key=${each.repository}>
      <button type="button" class="small" onClick=${() => look(each.repository)}>${each.repository}</button>
      <span class="soft">${each.memory} GB: ${each.what}</span>
      ${memory > 0 && memory < 0.9 * each.memory * GB && html`<span class="warn">more than this machine's ${bytes(memory)}</span>`}</li>`)}</ul></details></section>`;
}

function Variant({ name, size, for_device: isFor, fits, memory, total }) {
  const download = downloads.all.get(name);
  const isRunning = downloads.isRunning(name);
  return html`<li><span class="variant">${name}</span> <span class="soft">${bytes(size)}</span>
    ${isFor && fits !== false && html`<span class="badge">for this server</span>`}
    ${fits === false && html`<span class="warn">needs ${bytes(memory)} of memory, and this machine has ${bytes(total)}</span>`}
    ${isFor === false && fits !== false && html`<span class="soft">for other devices, or not the best for this one</span>`}
    ${isRunning && html`<${Progress} ...${download} />
      <button type="button" class="small" onClick=${() => downloads.stop(name)}>Stop</button>`}
    ${!isRunning && !download?.isDone && html`<button type="button" class="small" aria-label=${`Fetch ${name}`}
      onClick=${() => downloads.begin(name, size)}>${download ? "Continue" : "Fetch"}</button>`}
    ${download?.isDone && html`<span class="soft" role="status">Fetched and served.</span> <${ChatWith} name=${name} />`}
    ${download?.error && html`<span class="error" role="alert">${download.error}</span>`}</li>`;
}

function Progress({ total, completed, speed, step }) {
  const left = speed ? `, ${bytes(speed)}/s, ${time((total - completed) / speed * 1000)} left` : "";
  return html`<progress max=${total} value=${completed} aria-label="Download"></progress>
    <span class="soft">${completed ? `${bytes(completed)} of ${bytes(total)}${left}` : `${step || "asking the hub"} …`}</span>`;
}
