// The runtime options of each device. Their effect is explained before they are set.
import { ask } from "./api.js";
import { confirmation } from "./confirmation.js";
import { bytes, whole } from "./figures.js";
import { html, useEffect, useState } from "./html.js";
import { ActionButton } from "./parts.js";
import { server } from "./server.js";

const PATH = "v1/admin/runtime_options";

export function RuntimeOptions() {
  const [states, setStates] = useState([]);
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
    if (await confirmation.ask({ title: "Clear the prefix cache?", text, action: "Clear" })) {
      await ask("v1/admin/reset_prefix_cache", { method: "POST", admin: true, body: undefined });
    }
  };
  return html`<section aria-label="Runtime options"><h2>Runtime options</h2>
      <p class="soft">They can be set while answers are being generated. Nothing is reloaded.</p>
      ${problem && html`<p class="error" role="alert">${problem}</p>`}
      <div class="cards">${states.map((state) => html`<${Options} key=${`${state.model} ${state.device}`} ...${state} onChange=${load} />`)}</div></section>
    <section aria-label="Prefix cache"><h2>Prefix cache</h2>
      <${ActionButton} action=${reset}>Clear prefix cache …<//></section>`;
}

function Options({ model, device, options, onChange }) {
  const isEnded = options.terminate_session === "1", isProfiled = options.enable_profiling !== "0";
  const change = (option, value) => async () => {
    if (!await confirmation.ask(effects(model, device)[option][value])) return;
    await ask(PATH, { method: "POST", body: { [option]: value, model: model || undefined, device }, admin: true });
    await Promise.all([onChange(), server.refresh()]);
  };
  return html`<article class="card"><h3>${model || device} ${model && html`<span class="soft">${device}</span>`}</h3>
    <dl><div><dt>terminate_session</dt><dd>${options.terminate_session}</dd></div>
      <div><dt>enable_profiling</dt><dd>${options.enable_profiling}</dd></div>
      <div><dt>profiles on disk</dt><dd>${whole(options.profile_files)} files, ${bytes(options.profile_bytes)}</dd></div></dl>
    ${options.profile_stopped && html`<p class="error">${options.profile_stopped}</p>`}
    <div class="actions">
      <${ActionButton} class=${isEnded ? "primary" : "danger"} action=${change("terminate_session", isEnded ? "0" : "1")}>
        ${isEnded ? "Take requests again …" : "Terminate the session …"}<//>
      <${ActionButton} action=${change("enable_profiling", isProfiled ? "0" : "1")}>
        ${isProfiled ? "Stop profiling …" : "Profile everything …"}<//></div></article>`;
}

// What each value of each option does.
function effects(model, device) {
  const { running = 0, waiting = 0 } = server.devices.find((each) => each.model === model && each.device === device)?.status ?? {};
  const where = model ? `${model} on ${device}` : device;
  const number = running + waiting;
  return {
    terminate_session: {
      1: {
        title: `Terminate the session of ${where}?`,
        text: `Stops ${running} running and ${waiting} waiting answers, which keep their text so far and get the reason `
          + "“terminated”. New requests get a 503 until you resume.",
        action: number ? `Terminate ${number} answer${number === 1 ? "" : "s"}` : "Terminate",
      },
      0: {
        title: `Resume requests of ${where}?`, text: "Answers that were stopped do not continue.", action: "Take requests", isSafe: true,
      },
    },
    enable_profiling: {
      1: {
        title: `Profile everything of ${where}?`,
        text: "From now on every token is profiled, which slows all answers down, until you stop it or the profile folder "
          + "reaches a limit. A profile session is gentler: it stops by itself.",
        action: "Profile everything",
      },
      0: { title: `Stop profiling ${where}?`, text: "Profiles on disk are kept.", action: "Stop profiling", isSafe: true },
    },
  };
}
