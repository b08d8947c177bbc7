// Models and adapters: load, unload, alias.
import { ask } from "./api.js";
import { confirmation } from "./confirmation.js";
import { useChanges } from "./emitter.js";
import { html, useEffect, useState } from "./html.js";
import { ModelStore } from "./model_store.js";
import { models, purpose } from "./models.js";
import { ActionButton, Field } from "./parts.js";
import { server } from "./server.js";

const post = async (path, body) => {
  await ask(`v1/admin/${path}`, { method: "POST", body, admin: true });
  await models.follow();
};

// The models that requests cannot choose because they have failed, in the form of the list's entries. They come from the
// server's health, which is newer or older than the list: a model that is in the list is shown as the list has it.
function failed(listed) {
  const found = Object.entries(server.health?.models ?? {}).filter(([, { state }]) => state === "failed");
  return found.flatMap(([root, { state, error, aliases }]) => [root, ...aliases].map((id) => ({ id, root, state, error })))
    .filter(({ id }) => !listed.some((model) => model.id === id));
}

// Whether the list is older than the server's health: a request may load a model while the list is shown.
const isOld = () => models.list.some(({ id, state }) => (server.health?.models?.[id]?.state ?? state) !== state);

export function ModelsAdmin() {
  useChanges(models);
  useChanges(server);
  useEffect(() => { if (isOld()) models.load(); }, [server.health]);
  const listed = models.list.filter((model) => model.state !== "failed");
  const list = [...listed, ...failed(listed)];
  const own = list.filter((model) => model.id === model.root && !model.parent);
  const aliases = list.filter((model) => model.id !== model.root && !model.parent);
  const adapters = models.list.filter((model) => model.parent);
  const names = own.map((model) => model.id);
  return html`<section aria-label="Models"><h2>Served models</h2><div class="table" tabindex="0" role="region" aria-label="Table of models"><table>
      <thead><tr><th>name</th><th>for</th><th>state</th><th>also known as</th><th>adapters</th><th class="figure">context</th><th><span class="unseen">actions</span></th></tr></thead>
      <tbody>${own.map((model) => html`<${Model} key=${model.id} model=${model}
        aliases=${aliases.filter((each) => each.root === model.id)} adapters=${adapters.filter((each) => each.parent === model.id)} />`)}</tbody>
    </table></div></section>
    <${ModelStore} />
    <div class="forms">
      <${Form} title="Load another directory" action=${(body) => post("models/load", { ...body, wait: false })} fields=${[
        { name: "name", label: "Name", required: true }, { name: "path", label: "Directory", hint: "on the server's machine", required: true },
        { name: "device", label: "Devices", hint: "such as cpu; the server's if empty" }, { name: "chat_template", label: "Chat template", hint: "the model's own if empty" }]} />
      <${Form} title="Add an alias" action=${(body) => post("models/alias", body)} fields=${[
        { name: "alias", label: "New name", required: true }, { name: "name", label: "Model", among: names, required: true }]} />
      <${Form} title="Load an adapter" action=${(body) => post("adapters/load", body)} fields=${[
        { name: "name", label: "Name", required: true }, { name: "path", label: "File", hint: "on the server's machine", required: true },
        { name: "model", label: "Model", among: names }]} />
    </div>`;
}

function Model({ model, aliases, adapters }) {
  const unload = async () => {
    const text = "New requests are refused at once; running ones may finish first.";
    if (!await confirmation.ask({ title: `Unload ${model.id}?`, text, action: "Unload" })) return;
    await post("models/unload", { name: model.id, wait: false });
  };
  const removeAlias = (alias) => post("models/alias", { alias, name: null });
  const removeAdapter = (adapter) => post("adapters/unload", { model: model.id, name: adapter.id.slice(model.id.length + 1) });
  return html`<tr><td class="name">${model.id}</td><td>${purpose(model) || "–"}</td>
    <td><span class=${`dot ${model.state}`} aria-hidden="true"></span> ${model.state}${model.error ? html`<p class="error">${model.error}</p>` : ""}</td>
    <td>${aliases.map((each) => html`<span class="tag" key=${each.id}>${each.id}<${ActionButton} class="quiet"
      aria-label=${`Remove the name ${each.id}`} action=${() => removeAlias(each.id)}>✕<//></span>`)}</td>
    <td>${adapters.map((each) => html`<span class="tag" key=${each.id}>${each.id.slice(model.id.length + 1)}<${ActionButton} class="quiet"
      aria-label=${`Unload the adapter ${each.id}`} action=${() => removeAdapter(each)}>✕<//></span>`)}</td>
    <td class="figure">${model.max_model_len ?? "–"}</td>
    <td><${ActionButton} class="danger" action=${unload}>Unload<//></td></tr>`;
}

function Form({ title, fields, action }) {
  const [values, setValues] = useState({});
  const [problem, setProblem] = useState("");
  const set = (name) => (event) => setValues({ ...values, [name]: event.target.value });
  const submit = async (event) => {
    event.preventDefault();
    try {
      await action(Object.fromEntries(Object.entries(values).filter(([, value]) => value)));
      setValues({});
      setProblem("");
    } catch (error) {
      setProblem(error.message);
    }
  };
  return html`<form class="card" onSubmit=${submit} aria-label=${title}><h3>${title}</h3>
    ${fields.map(({ name, label, hint, among, required }) => html`<${Field} key=${name} label=${label} hint=${hint}>
      ${among ? html`<select value=${values[name] ?? ""} required=${required} onChange=${set(name)}><option value="">–</option>
          ${among.map((each) => html`<option key=${each} value=${each}>${each}</option>`)}</select>`
        : html`<input value=${values[name] ?? ""} required=${required} onInput=${set(name)} />`}<//>`)}
    ${problem && html`<p class="error" role="alert">${problem}</p>`}
    <div class="actions"><button>${title.split(" ")[0]}</button></div></form>`;
}
