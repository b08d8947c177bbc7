// One conversation: a tree of turns, of which one path is shown. Editing or regenerating a turn makes a branch.
import { contentOf, isAttachment } from "./attachments.js";
import { isSettings } from "./chat_settings.js";

export const ROOT = "root";

export function newChat(settings = {}) {
  const now = Date.now();
  return { id: newId(), title: "", created: now, updated: now, settings, turns: {}, chosen: {} };
}

// Outside of HTTPS and localhost a browser has no randomUUID.
export function newId() {
  return crypto.randomUUID?.() ?? Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

// Add a turn after another one, and show it. Its id is one that no other tab gives.
export function addTurn(chat, parent, turn) {
  const made = Date.now();
  const added = { id: newId(), parent, made, ...turn };
  chat.turns[added.id] = added;
  chat.chosen[parent] = added.id;
  chat.updated = made;
  if (!chat.title && turn.role === "user") chat.title = titleOf(turn);
  return added;
}

function titleOf({ content, attachments = [] }) {
  return (content.trim().split("\n")[0] || (attachments[0]?.name ?? "")).slice(0, 80);
}

// All turns after the same one, in the order in which they were made.
export function branches(chat, turn) {
  return Object.values(chat.turns).filter((other) => other.parent === turn.parent).sort((one, other) => one.made - other.made);
}

// Complete a chat of an older version, whose turns are in the order in which they were made, but without their times.
export function completed(chat) {
  chat.settings ??= {};
  Object.values(chat.turns).forEach((turn, place) => { turn.made ??= chat.created + place; });
  return chat;
}

// Take what another tab has written into a chat. Turns in `own` are only in this tab, or newer here. A chat that is shown
// here continues to show its branches.
export function merge(chat, written, own, isShown) {
  for (const [id, turn] of Object.entries(chat.turns)) if (!written.turns[id] && !own.has(turn)) delete chat.turns[id];
  for (const [id, turn] of Object.entries(written.turns)) {
    const here = chat.turns[id];
    if (!here) chat.turns[id] = turn;
    else if (!own.has(here)) Object.assign(here, turn, here.attachments ? { attachments: here.attachments } : {});
  }
  const { turns, chosen, ...fields } = written;
  Object.assign(chat, fields, { chosen: isShown ? { ...chosen, ...chat.chosen } : chosen });
}

export function choose(chat, turn) {
  chat.chosen[turn.parent] = turn.id;
}

// What is removed with a turn: {removed, moved}, lists of turns. A question goes with its answers, and the questions after
// them follow what came before it; an answer goes with all that follows it.
export function removalOf(chat, turn) {
  const removed = [turn];
  const moved = [];
  for (const each of removed) {
    for (const next of branches(chat, { parent: each.id })) {
      (turn.role === "user" && next.role === "user" ? moved : removed).push(next);
    }
  }
  return { removed, moved };
}

// Remove these turns, and let the moved ones follow `parent`.
export function removeTurns(chat, { removed, moved = [] }) {
  const shown = path(chat);
  const [{ parent }] = removed;
  for (const { id } of removed) delete chat.turns[id];
  for (const turn of moved) turn.parent = parent;
  const next = moved.find((turn) => shown.includes(turn));
  if (next) chat.chosen[parent] = next.id;
}

// Show the conversation up to this turn only; the next message begins a branch there.
export function endAt(chat, turn) {
  chat.chosen[turn.id] = null;
}

// How many turns are not shown because the conversation was to end at this one.
export function numHidden(chat, turn) {
  if (chat.chosen[turn.id] !== null) return 0;
  return path({ ...chat, chosen: { ...chat.chosen, [turn.id]: undefined } }, turn.id).length;
}

// Show again what follows a turn at which the conversation was to end.
export function showAfter(chat, turn) {
  chat.chosen[turn.id] = branches(chat, { parent: turn.id }).at(-1).id;
}

// The shown turns, or those of them after one.
export function path(chat, after = ROOT) {
  const found = [];
  for (let turn = shownAfter(chat, after); turn; turn = shownAfter(chat, turn.id)) found.push(turn);
  return found;
}

// The turn that is shown after this one: the chosen one, or the newest.
function shownAfter(chat, id) {
  const chosen = chat.chosen[id];
  return chosen === null ? undefined : chat.turns[chosen] ?? branches(chat, { parent: id }).at(-1);
}

// The turns from the first one to this one.
export function pathTo(chat, id) {
  const found = [];
  for (let turn = chat.turns[id]; turn; turn = chat.turns[turn.parent]) found.unshift(turn);
  return found;
}

// The attachments that are images. One that is kept has an id, `image`, and a `url` only while its chat is open.
export function imagesOf(chat) {
  return Object.values(chat.turns).flatMap(({ attachments = [] }) => attachments).filter(({ url, image }) => url || image);
}

// A copy of a chat; `change` returns a list in the place of each attachment.
export function withAttachments(chat, change) {
  const changed = (turn) => (turn.attachments ? { ...turn, attachments: turn.attachments.flatMap(change) } : turn);
  const turns = Object.entries(chat.turns).map(([id, turn]) => [id, changed(turn)]);
  return { ...chat, turns: Object.fromEntries(turns) };
}

// A turn as messages of the API: an answer with tools that the server has run is several.
export function messages(turn) {
  const runs = (turn.runs ?? []).filter(({ output }) => output !== undefined);
  if (!runs.length) return [message(turn)];
  const result = ({ id, output, status }) => ({
    role: "tool", tool_call_id: id, content: status === "failed" ? `Error: ${output}` : output,
  });
  // The conversation has the calls that the reader has approved.
  const found = runs.filter(({ isApproved }) => isApproved).map(result);
  let place = 0;
  // The server puts a blank line between the texts of rounds, which the model has not written.
  const textTo = (end) => turn.content.slice(place, end).replace(place ? /^\n+/ : "", "");
  const own = runs.filter(({ isApproved }) => !isApproved);
  for (const round of new Set(own.map((run) => run.round))) {
    const calls = own.filter((run) => run.round === round);
    const content = textTo(calls[0].place) || null;
    place = calls[0].place;
    const tool_calls = calls.map(({ id, server, name, arguments: text }) => ({
      id, type: "function", function: { name: `${server}__${name}`, arguments: text },
    }));
    found.push({ role: "assistant", content, tool_calls }, ...calls.map(result));
  }
  const rest = textTo();
  return rest || turn.calls.length ? [...found, message({ ...turn, content: rest })] : found;
}

function message(turn) {
  if (turn.role === "tool") return { role: "tool", tool_call_id: turn.call, content: turn.content };
  if (turn.role === "user") return { role: "user", content: contentOf(turn.content, turn.attachments) };
  if (!turn.calls?.length) return { role: turn.role, content: turn.content };
  const tool_calls = turn.calls.map(({ id, name, text }) => ({
    id, type: "function", function: { name, arguments: text },
  }));
  return { role: "assistant", content: turn.content || null, tool_calls };
}

// Whether an object of a file is a chat that this page can show.
export function isChat(value) {
  const isObject = (each) => typeof each === "object" && each !== null && !Array.isArray(each);
  return isObject(value) && typeof value.id === "string" && typeof value.title === "string"
    && isObject(value.turns) && isObject(value.chosen) && (value.settings === undefined || isSettings(value.settings))
    && Object.entries(value.turns).every(([id, turn]) => isObject(turn) && turn.id === id
      && typeof turn.content === "string" && typeof turn.parent === "string"
      && ["user", "assistant", "tool"].includes(turn.role)
      && (turn.attachments === undefined || (Array.isArray(turn.attachments) && turn.attachments.every(isAttachment)))
      && (turn.role !== "assistant" || (Array.isArray(turn.calls) && Array.isArray(turn.pieces))));
}
