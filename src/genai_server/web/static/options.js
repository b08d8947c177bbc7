// The reader's settings for each request: system prompt, sampling, tools and a schema. Empty fields are omitted.
import { Emitter } from "./emitter.js";

// A field of the body, and what may be typed into it.
export const NUMBERS = [
  { name: "temperature", label: "Temperature", min: 0, max: 2, step: 0.1, hint: "0 always selects the most likely token" },
  { name: "top_p", label: "Top p", min: 0.01, max: 1, step: 0.01 },
  { name: "top_k", label: "Top k", min: 0, step: 1 },
  { name: "min_p", label: "Min p", min: 0, max: 1, step: 0.01 },
  { name: "repetition_penalty", label: "Repetition penalty", min: 0.01, max: 10, step: 0.01 },
  { name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: 0.1 },
  { name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: 0.1 },
  { name: "max_tokens", label: "Maximum tokens", min: 1, step: 1, hint: "of the answer; as many as fit if empty" },
  { name: "seed", label: "Seed", step: 1, hint: "the same seed gives the same answer" },
];
const KEY = "request-options";

class Options extends Emitter {
  values = JSON.parse(localStorage.getItem(KEY) ?? "{}");

  get(name) {
    return this.values[name] ?? "";
  }

  set(name, value) {
    if (value === "" || value === false) delete this.values[name];
    else this.values[name] = value;
    localStorage.setItem(KEY, JSON.stringify(this.values));
    this.changed();
  }

  clear() {
    this.values = {};
    localStorage.removeItem(KEY);
    this.changed();
  }

  // The fields of a request. Throws Error if a schema or the tools are not JSON.
  fields() {
    const found = {};
    for (const { name } of NUMBERS) if (this.get(name) !== "") found[name] = Number(this.get(name));
    const stop = this.get("stop").split("\n").filter(Boolean);
    if (stop.length) found.stop = stop;
    if (this.get("ignore_eos")) found.ignore_eos = true;
    if (this.get("reasoning_effort")) found.reasoning_effort = this.get("reasoning_effort");
    const tools = parsed("The tools", this.get("tools"));
    if (tools !== null) found.tools = Array.isArray(tools) ? tools : [tools];
    const schema = parsed("The schema", this.get("schema"));
    if (schema !== null) {
      found.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
    }
    if (this.get("logprobs")) Object.assign(found, { logprobs: true, top_logprobs: 5 });
    return found;
  }
}

function parsed(what, text) {
  if (!text.trim()) return null;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${what} must be JSON: ${error.message}`);
  }
}

export const options = new Options();
