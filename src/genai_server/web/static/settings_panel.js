// The form of a chat's settings, with presets to start from.
import { NUMBERS } from "./chat_settings.js";
import { useChanges } from "./emitter.js";
import { html, useEffect, useState } from "./html.js";
import { Field, focused } from "./parts.js";
import { areEqual, presets } from "./presets.js";
import { chosenServers, toolServers } from "./tool_servers.js";

const EFFORTS = ["", "none", "minimal", "low", "medium", "high"];

// `onSet` gets the name and value of a setting, `onReplace` all settings.
export function SettingsPanel({ settings, onSet, onReplace }) {
  const field = (name) => ({ name, value: settings[name] ?? "", onSet: (value) => onSet(name, value) });
  return html`<div class="panel-body">
    <p class="soft">For this chat only, and exported with it.</p>
    <${PresetChoice} settings=${settings} onReplace=${onReplace} />
    <${ForNewChats} settings=${settings} />
    <${Text} ...${field("system")} label="System prompt" rows="3" />
    <div class="grid">${NUMBERS.map((number) => html`<${NumberField} key=${number.name} ...${number} ...${field(number.name)} />`)}
      <${Field} label="Reasoning effort" hint="for models that know it">
        <select value=${settings.reasoning_effort ?? ""} onChange=${(event) => field("reasoning_effort").onSet(event.target.value)}>
          ${EFFORTS.map((effort) => html`<option key=${effort} value=${effort}>${effort || "default"}</option>`)}
        </select><//>
    </div>
    <${Text} ...${field("stop")} label="Stop texts" rows="2" hint="one per line, up to four; they end the answer" />
    <${Check} ...${field("ignore_eos")} label="Ignore the end-of-answer token" hint="runs to max tokens" />
    <${Check} ...${field("leave_out_oldest")} label="Leave out the oldest messages" hint="when the context is full" />
    <${Check} ...${field("logprobs")} label="Token probabilities" hint="to colour tokens by probability" />
    <${Text} ...${field("schema")} label="JSON schema of the answer" rows="4" code
      placeholder='{"type": "object", "properties": {"mood": {"type": "string"}}}' />
    <${ServerChoice} ...${field("tool_servers")} />
    <${Text} ...${field("tools")} label="Tools" rows="4" code hint="a list as the API takes it, in JSON"
      placeholder='[{"type": "function", "function": {"name": "get_weather"}}]' />
    <div class="actions"><button type="button" class="quiet" disabled=${!Object.keys(settings).length}
      onClick=${() => onReplace({})}>Clear all</button></div>
  </div>`;
}

// The tool servers whose tools the server runs for this chat.
function ServerChoice({ value, onSet }) {
  useChanges(toolServers);
  useEffect(() => { toolServers.load(); }, []);
  const chosen = chosenServers({ tool_servers: value });
  const known = toolServers.list.map(({ id }) => id);
  if (!known.length && !chosen.length) return null;
  const toggle = (id) => onSet((chosen.includes(id) ? chosen.filter((each) => each !== id) : [...chosen, id]).join(","));
  const gone = chosen.filter((id) => !known.includes(id)).map((id) => ({ id, description: toolServers.error || "this server does not have it" }));
  return html`<fieldset class="tool-servers"><legend class="label">Tool servers</legend>
    ${[...toolServers.list, ...gone].map(({ id, description }) => html`<label class="check" key=${id}>
      <input type="checkbox" checked=${chosen.includes(id)} onChange=${() => toggle(id)} /><span>${id}</span>
      ${description && html`<span class="hint">${description}</span>`}</label>`)}</fieldset>`;
}

// Lets new chats begin with these settings.
function ForNewChats({ settings }) {
  useChanges(presets);
  const { defaults } = presets;
  const areDefaults = areEqual(defaults, settings);
  const isEmpty = !Object.keys(settings).length;
  if (areDefaults && isEmpty) return null;
  const words = areDefaults ? "New chats begin with these settings." : Object.keys(defaults).length ? "New chats begin with other settings." : "";
  return html`<div class="presets"><span class="soft">${words}</span>
    ${areDefaults || isEmpty ? html`<button type="button" class="quiet" onClick=${() => { presets.defaults = {}; }}>Begin them without settings</button>`
      : html`<button type="button" class="quiet" onClick=${() => { presets.defaults = settings; }}>Use for new chats</button>`}</div>`;
}

function PresetChoice({ settings, onReplace }) {
  useChanges(presets);
  const [name, setName] = useState(null);
  const chosen = presets.like(settings);
  const isEmpty = !Object.keys(settings).length;
  const choose = ({ target: { value } }) => onReplace({ ...presets.all.find((preset) => preset.name === value)?.settings });
  const save = (event) => {
    event.preventDefault();
    presets.save(name.trim(), settings);
    setName(null);
  };
  return html`<div class="presets"><${Field} label="Preset"><select value=${chosen?.name ?? ""} onChange=${choose}>
      <option value="">${isEmpty || chosen ? "None" : "None (own settings)"}</option>
      ${presets.all.map((preset) => html`<option key=${preset.name} value=${preset.name}>${preset.name}</option>`)}</select><//>
    ${name !== null ? html`<form class="rename" onSubmit=${save}>
        <input aria-label="Name of the preset" value=${name} ref=${focused} onInput=${(event) => setName(event.target.value)} />
        <button disabled=${!name.trim()}>Save</button></form>`
      : html`<button type="button" class="quiet" disabled=${isEmpty || chosen} onClick=${() => setName("")}>Save as preset</button>
        ${presets.own.includes(chosen) && html`<button type="button" class="quiet"
          onClick=${() => presets.remove(chosen)}>Delete preset</button>`}`}
  </div>`;
}

function NumberField({ name, label, hint, value, onSet, ...limits }) {
  return html`<${Field} label=${label} hint=${hint}>
    <input type="number" inputmode="decimal" placeholder="default" value=${value} ...${limits}
      onInput=${(event) => onSet(event.target.value)} /><//>`;
}

function Text({ name, label, hint, code, value, onSet, ...rest }) {
  return html`<${Field} label=${label} hint=${hint}>
    <textarea class=${code ? "code-input" : ""} spellcheck=${!code} value=${value} ...${rest}
      onInput=${(event) => onSet(event.target.value)}></textarea><//>`;
}

function Check({ label, hint, value, onSet }) {
  return html`<label class="check"><input type="checkbox" checked=${Boolean(value)}
    onChange=${(event) => onSet(event.target.checked)} />
    <span>${label} <span class="hint">${hint}</span></span></label>`;
}
