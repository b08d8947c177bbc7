// The settings of a chat: system prompt, sampling, tools and a schema. Fields that are not set are absent; the others are
// texts, or true.
import { chosenServers, HEADER } from "./tool_servers.js";

// A field of the body, and what may be typed into it.
export const NUMBERS = [
  { name: "temperature", label: "Temperature", min: 0, max: 2, step: 0.1, hint: "0 always selects the most likely token" },
  { name: "max_tokens", label: "Max tokens", min: 1, step: 1, hint: "of the answer; empty: as many as fit" },
  { name: "top_p", label: "Top p", min: 0.01, max: 1, step: 0.01 },
  { name: "top_k", label: "Top k", min: 0, step: 1 },
  { name: "min_p", label: "Min p", min: 0, max: 1, step: 0.01 },
  { name: "repetition_penalty", label: "Repetition penalty", min: 0.01, max: 10, step: 0.01 },
  { name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: 0.1 },
  { name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: 0.1 },
  { name: "seed", label: "Seed", step: 1, hint: "the same seed gives the same answer" },
  { name: "thinking_token_budget", label: "Reasoning budget", min: 0, step: 1, hint: "tokens of reasoning; 0: none" },
];
// Fields of a request whose answer has the probabilities of its tokens.
export const PROBABILITIES = { logprobs: true, top_logprobs: 5 };

// These settings with another value of one.
export function withSetting(settings, name, value) {
  const { [name]: before, ...others } = settings;
  return value === "" || value === false ? others : { ...others, [name]: value };
}

export function isSettings(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value)
    && Object.values(value).every((each) => typeof each === "string" || each === true);
}

// The system prompt as messages of a request.
export function systemMessages({ system = "" }) {
  return system.trim() ? [{ role: "system", content: system }] : [];
}

// The other fields of a request. Throws Error if a schema or the tools are not JSON.
export function requestFields(settings) {
  const found = {};
  for (const { name } of NUMBERS) if (settings[name]) found[name] = Number(settings[name]);
  const stop = (settings.stop ?? "").split("\n").filter(Boolean);
  if (stop.length) found.stop = stop;
  if (settings.ignore_eos) found.ignore_eos = true;
  if (settings.reasoning_effort) found.reasoning_effort = settings.reasoning_effort;
  const tools = parsed("The tools", settings.tools);
  if (tools !== null) found.tools = Array.isArray(tools) ? tools : [tools];
  const schema = parsed("The schema", settings.schema);
  if (schema !== null) {
    found.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
  }
  return settings.logprobs ? { ...found, ...PROBABILITIES } : found;
}

// The headers of a request: which tool servers it uses.
export function requestHeaders(settings) {
  const servers = chosenServers(settings);
  return servers.length ? { [HEADER]: servers.join(",") } : {};
}

function parsed(what, text = "") {
  if (!text.trim()) return null;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${what} must be JSON: ${error.message}`);
  }
}
