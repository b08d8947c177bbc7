// What becomes of a chat that fills the model's context.
import { messages } from "./chat_tree.js";

// The code of the server's refusal.
const TOO_LONG = "context_length_exceeded";
// The share of the context that the messages may take, so that the answer has the rest.
const SHARE = 0.75;
// Tokens of a character where no answer says it, and characters that stand for a file that is not text.
const TOKENS_EACH = 1 / 3;
const FILE_SIZE = 2000;
// Tokens that an answer may lack to the whole context.
const SLACK = 2;

export const isTooLong = (turn) => turn.code === TOO_LONG;

// Whether an answer was refused or cut because the context is full.
export function isContextFull(turn) {
  const { finish, usage, context } = turn;
  return isTooLong(turn) || (finish === "length" && Boolean(usage && context) && usage.total_tokens >= context - SLACK);
}

// The figures of a full context: {tokens, limit}, which are null where they are not known.
export function figuresOf(turn) {
  if (!isTooLong(turn)) return { tokens: turn.usage.total_tokens, limit: turn.context };
  const [, limit = null, tokens = null] = /length is (\d+) tokens\..* in (\d+) tokens/.exec(turn.error ?? "") ?? [];
  return { tokens: tokens && Number(tokens), limit: limit && Number(limit) };
}

// The places of the questions, with which rounds begin.
const beginnings = (turns) => turns.flatMap((turn, place) => (turn.role === "user" ? [place] : []));

// How many rounds, each a question with what belongs to it, may be left out: all but the last.
export const mostLeftOut = (turns) => Math.max(0, beginnings(turns).length - 1);

// The turns without this number of the oldest rounds.
export function withoutOldest(turns, number) {
  return number ? turns.slice(beginnings(turns)[number]) : turns;
}

// About how many of the oldest rounds have to be left out so that the answer has room in the context.
export function numTooMany(turns, context) {
  if (!context) return 0;
  const each = tokensEach(turns);
  const most = mostLeftOut(turns);
  let number = 0;
  while (number < most && lengthOf(withoutOldest(turns, number)) * each > SHARE * context) number += 1;
  return number;
}

// The characters for which the messages of a request have room.
export function roomFor(turns, context) {
  return context ? Math.floor(SHARE * context / tokensEach(turns)) : Infinity;
}

// Tokens of a character, as the last answer that has figures shows it.
function tokensEach(turns) {
  // The prompt of a summary was another chat.
  const last = turns.findLastIndex(({ usage }, place) => usage && !turns[place - 1]?.summaryOf);
  if (last < 0) return TOKENS_EACH;
  const { usage, leftOut = 0 } = turns[last];
  const length = lengthOf(withoutOldest(turns.slice(0, last + 1), leftOut));
  return length ? usage.total_tokens / length : TOKENS_EACH;
}

// The characters of turns as they are sent.
export function lengthOf(turns) {
  return turns.flatMap(messages).reduce((all, each) => all + lengthOfContent(each.content)
    + (each.tool_calls ?? []).reduce((sum, call) => sum + call.function.arguments.length, 0), 0);
}

function lengthOfContent(content) {
  if (!Array.isArray(content)) return content?.length ?? 0;
  return content.reduce((all, part) => all + (part.type === "text" ? part.text.length : FILE_SIZE), 0);
}

// The texts of turns as messages of at most this many characters together: the oldest are left out, and what is too long
// even so loses its middle.
export function shortened(turns, room) {
  const most = mostLeftOut(turns);
  let number = 0;
  while (number < most && lengthOf(withoutOldest(turns, number)) > room) number += 1;
  const found = withoutOldest(turns, number).flatMap(messages).map(({ role, content }) => ({ role, content: textOf(content) }))
    .filter(({ role, content }) => role !== "tool" && content.trim());
  const length = found.reduce((all, { content }) => all + content.length, 0);
  const share = length > room ? Math.floor(room / found.length) : Infinity;
  return found.map(({ role, content }) => ({ role, content: withoutMiddle(content, share) }));
}

function textOf(content) {
  if (!Array.isArray(content)) return content ?? "";
  return content.filter(({ type }) => type === "text").map(({ text }) => text).join("\n\n");
}

function withoutMiddle(text, length) {
  if (text.length <= length) return text;
  const half = Math.floor(length / 2);
  return `${text.slice(0, half)}\n[…]\n${text.slice(-half)}`;
}
