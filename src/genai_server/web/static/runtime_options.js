// The runtime options of each device. A dialog explains their effect before they are set.
import { ask } from "./api.js";
import { confirmation } from "./confirmation.js";
import { bytes, whole } from "./figures.js";
import { html, useEffect, useState } from "./html.js";
import { ActionButton, Dialog } from "./parts.js";
import { server } from "./server.js";

const PATH = "v1/admin/runtime_options";

export function RuntimeOptions() {
  const [states, setStates] = useState([]);
  const [asked, setAsked] = useState(null);
  const [problem, setProblem] = useState("");
  const load = async () => {
    try {
      const found = await ask(PATH, { admin: true });
      const models = found.models ?? { [server.devices[0]?.model ?? ""]: found };
      setStates(Object.entries(models).flatMap(([model, { devices }]) =>
        Object.entries(devices).map(([device, options]) => ({ model, device, options }))));
      setProblem("");
    } catch (error) {
      setProblem(error.message);
    }
  };
  useEffect(() => { load(); }, []);
  const reset = async () => {
    const text = "It holds the prompts of ended requests. The next prompts are read in full.";
    if (await confirmation.ask("Clear the prefix cache?", text, "Clear")) {
      await ask("v1/admin/reset_prefix_cache", { method: "POST", admin: true, body: undefined });
    }
  };
  return html`<section aria-label="Runtime options"><h2>Runtime options</h2>
      <p class="soft">They can be set while answers are being generated. Nothing is reloaded.</p>
      ${problem && html`<p class="error" role="alert">${problem}</p>`}
      <div class="cards">${states.map((state) => html`<${Options} key=${`${state.model} ${state.device}`} ...${state} onAsk=${setAsked} />`)}</div></section>
    <section aria-label="Prefix cache"><h2>Prefix cache</h2>
      <${ActionButton} action=${reset}>Clear prefix cache …<//></section>
    ${asked && html`<${Confirmation} ...${asked} onDone=${() => { setAsked(null); load(); server.refresh(); }} />`}`;
}

function Options({ model, device, options, onAsk }) {
  const isEnded = options.terminate_session === "1", isProfiled = options.enable_profiling !== "0";
  const change = (option, value) => () => onAsk({ model, device, option, value });
  return html`<article class="card"><h3>${device} <span class="soft">${model}</span></h3>
    <dl><div><dt>terminate_session</dt><dd>${options.terminate_session}</dd></div>
      <div><dt>enable_profiling</dt><dd>${options.enable_profiling}</dd></div>
      <div><dt>profiles on disk</dt><dd>${whole(options.profile_files)} files, ${bytes(options.profile_bytes)}</dd></div></dl>
    ${options.profile_stopped && html`<p class="error">${options.profile_stopped}</p>`}
    <div class="actions">
      <button type="button" class=${isEnded ? "primary" : "danger"} onClick=${change("terminate_session", isEnded ? "0" : "1")}>
        ${isEnded ? "Take requests again …" : "Terminate the session …"}</button>
      <button type="button" onClick=${change("enable_profiling", isProfiled ? "0" : "1")}>
        ${isProfiled ? "Stop profiling …" : "Profile everything …"}</button></div></article>`;
}

function effect(model, device, option, value) {
  const { running = 0, waiting = 0 } = server.devices.find((each) => each.model === model && each.device === device)?.status ?? {};
  const effects = {
    terminate_session: {
      1: `The ${running} running and ${waiting} waiting answers of ${device} end now, each with its text so far and the `
        + "reason “terminated”. New requests for it get a 503 until the option is 0 again.",
      0: `${device} takes requests again. What was ended does not come back.`,
    },
    enable_profiling: {
      1: `Each token of ${device} writes a profile from now on, which makes all its answers slower, until the option is 0 `
        + "or a limit of the profiles' folder is reached. A profile session is gentler: it ends automatically.",
      0: `No more profiles are written on ${device}. Those on disk stay.`,
    },
  };
  return effects[option][value];
}

function Confirmation({ model, device, option, value, onDone }) {
  const set = async () => {
    await ask(PATH, { method: "POST", body: { [option]: value, model: model || undefined, device }, admin: true });
    onDone();
  };
  return html`<${Dialog} title=${`Set ${option} to "${value}" on ${device}`} onClose=${onDone}>
    <p>${effect(model, device, option, value)}</p>
    <div class="actions"><button type="button" class="quiet" onClick=${onDone}>Leave it</button>
      <${ActionButton} class="primary" action=${set}>Set it<//></div><//>`;
}
