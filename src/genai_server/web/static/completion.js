// One streamed answer: the request's body, and what its chunks add to a turn.
import { ApiError, call } from "./api.js";
import { Unreachable } from "./connection.js";
import { events } from "./events.js";

// Statuses of requests that the server can never accept: what they ask for is wrong or too long.
const REFUSED = [400, 413, 422];

// A request that includes everything this page shows in addition to the answer.
export function streamed(body) {
  return {
    ...body, stream: true, stream_options: { include_usage: true }, include_metrics: true, return_progress: true,
  };
}

export function emptyAnswer() {
  return {
    role: "assistant", content: "", reasoning: "", calls: [], runs: [], pieces: [], finish: null, usage: null, metrics: null,
    progress: null, error: null, code: null, ttft: null, ignored: null, answerId: null, maxTokens: null, context: null,
    leftOut: 0,
  };
}

// Let the model of an answer that is being written end its reasoning. An answer that has ended needs nothing.
export function answerNow(turn) {
  call(`v1/requests/${encodeURIComponent(turn.answerId)}/end_reasoning`, { method: "POST" }).catch(() => {});
}

// Fill a turn with, or continue it by, the answer to a body, with these headers. `changed` is called after each chunk. Never throws: the turn has the error.
// Returns whether the server was reached.
export async function complete({ body, headers = {} }, turn, changed, signal) {
  const began = performance.now() - (turn.pieces.at(-1)?.at ?? 0);
  const { usage } = turn;
  Object.assign(turn, { error: null, code: null, finish: null, isRefused: false, maxTokens: body.max_tokens ?? null });
  let wasReached = true;
  try {
    const response = await call("v1/chat/completions", { method: "POST", body: streamed(body), headers, signal });
    // The calls that the reader has approved.
    const approved = new Set((body.messages.findLast((each) => each.tool_calls)?.tool_calls ?? []).map(({ id }) => id));
    // What of the request had no effect, such as images of earlier turns with a model that reads text only.
    turn.ignored = response.headers.get("x-genai-ignored");
    for await (const chunk of events(response, signal)) {
      add(turn, chunk, performance.now() - began, approved);
      changed();
    }
  } catch (error) {
    if (signal.aborted) turn.finish = "stopped";
    else turn.error = error instanceof Unreachable && turn.pieces.length ? "The connection to the server was lost." : error.message;
    turn.code = error.code || null;
    turn.isRefused = error instanceof ApiError && REFUSED.includes(error.status);
    wasReached = !(error instanceof Unreachable) || turn.pieces.length > 0;
  }
  turn.progress = null;
  if (usage && turn.usage !== usage) turn.usage = both(usage, turn.usage);
  turn.finish ??= turn.error ? "error" : "stopped";
  changed();
  return wasReached;
}

// The tokens of an answer and of its continuation, whose prompt has the answer.
function both(first, { completion_tokens: more }) {
  return { ...first, completion_tokens: first.completion_tokens + more, total_tokens: first.total_tokens + more };
}

function add(turn, chunk, at, approved) {
  if (chunk.error) {
    turn.error = chunk.error.message;
    turn.code = chunk.error.code ?? null;
    turn.finish = "error";
    return;
  }
  turn.model = chunk.model ?? turn.model;
  turn.answerId = chunk.id ?? turn.answerId;
  turn.usage = chunk.usage ?? turn.usage;
  turn.metrics = chunk.metrics ?? turn.metrics;
  if (chunk.prompt_progress) turn.progress = chunk.prompt_progress;
  const [choice] = chunk.choices ?? [];
  if (!choice) return;
  if (choice.finish_reason) turn.finish = finishOf(choice);
  const { content = "", reasoning_content: reasoning = "", tool_calls: calls = [] } = choice.delta;
  turn.content += content ?? "";
  turn.reasoning += reasoning ?? "";
  for (const run of choice.delta.genai_tool_runs ?? []) addRun(turn, run, approved);
  for (const call of calls) addCall(turn.calls, call);
  const tokens = choice.logprobs?.content?.map(scored);
  const text = (reasoning ?? "") + (content ?? "") + calls.map((call) => call.function.arguments ?? "").join("");
  if (!text && !tokens?.length) return;
  turn.progress = null;
  turn.ttft ??= at;
  turn.pieces.push({ at, text, ...(tokens?.length ? { tokens } : {}) });
}

// How an answer ended; "incomplete_call" if the model or a stop text ended it within a tool call.
function finishOf({ finish_reason: reason, genai_finish_reason: cause = reason }) {
  return reason === "length" && cause === "stop" ? "incomplete_call" : cause;
}

function addCall(calls, { index, id, function: { name, arguments: text = "" } }) {
  calls[index] ??= { id, name, text: "" };
  calls[index].text += text;
}

// A tool that the server runs, as it begins and as it ends. `place` is where it stands in the text of the answer.
function addRun(turn, { index, output, status, ...call }, approved) {
  turn.runs ??= [];
  let run = turn.runs.find(({ id }) => id === call.id);
  if (!run) {
    const last = turn.runs.at(-1);
    const round = last === undefined ? 0 : last.round + (last.output === undefined ? 0 : 1);
    run = { ...call, place: turn.content.length, round, isApproved: approved.has(call.id) };
    turn.runs.push(run);
    turn.progress = null;
  }
  Object.assign(run, { status }, output === undefined ? {} : { output });
}

function scored({ token, logprob, top_logprobs }) {
  return { token, logprob, top: top_logprobs.map((other) => ({ token: other.token, logprob: other.logprob })) };
}

// Tokens a second while an answer is being written, from its pieces, most of which are one token.
export function rate(turn) {
  if (turn.metrics?.output_tokens_per_second) return turn.metrics.output_tokens_per_second;
  const { length } = turn.pieces;
  const seconds = length > 1 ? (turn.pieces[length - 1].at - turn.pieces[0].at) / 1000 : 0;
  return seconds ? (length - 1) / seconds : null;
}
