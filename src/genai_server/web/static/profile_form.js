// The form that starts a profile session, with all fields of POST /v1/admin/profiles.
import { ask } from "./api.js";
import { html, useState } from "./html.js";
import { Field } from "./parts.js";
import { server } from "./server.js";

const WHEN = { now: "from now on", slow_token_ms: "after a token slower than", slow_token_ratio: "after a token N× slower than the median" };
const WHICH = { all: "all tokens", prefill: "prompts only", decode: "after the prompt only", first_tokens: "the first tokens", tokens: "tokens from … to …" };
const NUMBERS = ["slow_token_ms", "slow_token_ratio", "next_tokens", "max_per_hour", "first_tokens", "max_tokens", "max_seconds"];

export function ProfileForm({ query, onBegun }) {
  const trigger = ["slow_token_ms", "slow_token_ratio"].find((name) => query[name]) ?? "now";
  const [values, setValues] = useState({ when: trigger, which: "all", max_tokens: "20", max_seconds: "600", ...query });
  const [state, setState] = useState({ problem: "", begun: "" });
  const get = (name) => values[name] ?? "";
  const set = (name) => (event) => setValues({ ...values, [name]: event.target.value });
  const submit = async (event) => {
    event.preventDefault();
    try {
      const { id } = await ask("v1/admin/profiles", { method: "POST", body: bodyOf({ ...values, model, device }), admin: true });
      setState({ problem: "", begun: id });
      await onBegun();
    } catch (error) {
      setState({ problem: error.message, begun: "" });
    }
  };
  const input = (name, label, hint, rest = {}) => html`<${Field} label=${label} hint=${hint}>
    <input value=${get(name)} onInput=${set(name)} ...${rest} /><//>`;
  const count = (name, label, hint) => input(name, label, hint, { type: "number", min: 0, step: "any" });
  const choice = (name, label, found, value = get(name)) => html`<${Field} label=${label}><select value=${value} onChange=${set(name)}>
    ${Object.entries(found).map(([value, words]) => html`<option key=${value} value=${value}>${words}</option>`)}</select><//>`;
  // A session is for one device, unless the request names it.
  const isAny = Boolean(get("request_id"));
  const models = [...new Set(server.devices.map((each) => each.model))].filter(Boolean);
  const model = oneOf(models, get("model"), isAny);
  const devices = [...new Set(server.devices.filter((each) => !model || each.model === model).map((each) => each.device))];
  const device = oneOf(devices, get("device"), isAny);
  return html`<form class="card" onSubmit=${submit}><div class="grid wide">
      ${choice("when", "Begin", WHEN)}
      ${get("when") !== "now" && count(get("when"), get("when") === "slow_token_ms" ? "Milliseconds" : "Times the median")}
      ${get("when") !== "now" && count("next_tokens", "Tokens after a slow one", "5 if empty")}
      ${get("when") !== "now" && count("max_per_hour", "Captures per hour", "4 if empty")}
      ${choice("which", "Tokens", WHICH)}
      ${get("which") === "first_tokens" && count("first_tokens", "First tokens")}
      ${get("which") === "tokens" && html`${count("from", "From token", "0 is the prompt's")}${count("to", "To token")}`}
      ${count("max_tokens", "Ends after tokens")}${count("max_seconds", "Ends after seconds")}
      ${choice("model", "Model", choices(models, isAny), model)}
      ${choice("device", "Device", choices(devices, isAny), device)}
      ${input("request_id", "Only this request", "its id; all if empty", { list: "request-ids" })}
      ${input("prefix", "Name begins with", "session if empty")}
      <datalist id="request-ids">${server.requests.map((each) => html`<option key=${each.unique_id} value=${each.unique_id} />`)}</datalist>
    </div>
    ${state.problem && html`<p class="error" role="alert">${state.problem}</p>`}
    ${state.begun && html`<p role="status">The session <code>${state.begun}</code> has begun.</p>`}
    <div class="actions"><button class="primary">Begin</button></div></form>`;
}

const choices = (names, isAny) => Object.fromEntries([...(isAny ? [["", "any"]] : []), ...names.map((name) => [name, name])]);

// The chosen name; the first one if it is gone and one must be chosen.
const oneOf = (names, chosen, isAny) => (names.includes(chosen) ? chosen : isAny ? "" : names[0] ?? "");

// The body of the call: what is empty or does not belong to the choices is left out.
export function bodyOf(values) {
  const { when = "now", which = "all" } = values;
  const body = {};
  const wanted = ["max_tokens", "max_seconds", ...(when === "now" ? [] : [when, "next_tokens", "max_per_hour"]),
    ...(which === "first_tokens" ? ["first_tokens"] : []), "model", "device", "request_id", "prefix"];
  for (const name of wanted) {
    if (values[name]) body[name] = NUMBERS.includes(name) ? Number(values[name]) : values[name];
  }
  if (which === "prefill" || which === "decode") body.phase = which;
  if (which === "tokens") body.tokens = [Number(values.from), Number(values.to)];
  return body;
}
