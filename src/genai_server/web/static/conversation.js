// What the reader does in a chat: send, stop, regenerate, edit, continue from a turn, answer tool calls.
import { addTurn, endAt, messages, path, pathTo, ROOT } from "./chat.js";
import { chats } from "./chats.js";
import { requestFields, requestHeaders, systemMessages } from "./chat_settings.js";
import { complete, emptyAnswer } from "./completion.js";
import { connection } from "./connection.js";
import { drafts } from "./drafts.js";
import { Emitter } from "./emitter.js";
import { models, refusalOf } from "./models.js";

// Milliseconds between two saves of a running answer.
const SAVE_EVERY = 1000;
const DECLINED = "Error: the user has declined this call.";
const NOT_REACHED = "The server is not reachable. The message can be sent once it is.";

class Running extends Emitter {
  // Why the last message was not sent; "" if it was.
  problem = "";
  // Functions that stop an answer, keyed by chat id.
  #controllers = new Map();

  constructor() {
    super();
    // A chat may be removed in this tab or another one.
    chats.listen(() => { for (const id of this.#controllers.keys()) if (!chats.get(id)) this.stop({ id }); });
    connection.listen(() => {
      if (!connection.isLost && this.problem === NOT_REACHED) this.problem = "";
      this.changed();
    });
  }

  refuse(problem) {
    this.problem = problem;
    this.changed();
  }

  has(chat) {
    return this.#controllers.has(chat.id);
  }

  stop(chat) {
    this.#controllers.get(chat.id)?.abort();
  }

  // Let a turn grow into the answer to a body. `takeBack` is called if the server was not reached.
  async answer(chat, turn, body, takeBack) {
    const controller = new AbortController();
    this.#controllers.set(chat.id, controller);
    let next = performance.now() + SAVE_EVERY;
    chats.begin(turn);
    const wasReached = await complete({ body, headers: requestHeaders(chat.settings) }, turn, () => {
      this.changed();
      const now = performance.now();
      if (now < next) return;
      next = Infinity;
      chats.save(chat).then(() => { next = performance.now() + SAVE_EVERY; });
    }, controller.signal);
    chats.end(turn);
    this.#controllers.delete(chat.id);
    if (wasReached || !takeBack) chat.updated = Date.now();
    else takeBack(turn);
    await chats.save(chat);
    this.changed();
  }
}

export const running = new Running();

// The body of a request that continues after a turn. Throws Error if a setting is wrong.
export function requestAfter(chat, id) {
  return {
    model: models.chosen?.id,
    messages: [...systemMessages(chat.settings), ...pathTo(chat, id).filter(isSaid).flatMap(messages)],
    ...requestFields(chat.settings),
  };
}

// Whether a turn of a path is sent to the model. An answer that failed before its first word says nothing. A question that the
// server refused would be the reason to refuse all that follow it.
function isSaid(turn, place, path) {
  if (turn.role === "assistant") return turn.content.trim() || turn.calls.length || turn.runs?.length;
  return turn.role !== "user" || !path[place + 1]?.isRefused;
}

// Whether these settings and new attachments make a request; else `running` has the problem.
export function canSend(settings, attachments = []) {
  running.problem = "";
  try {
    requestFields(settings);
  } catch (error) {
    running.problem = error.message;
  }
  if (connection.isLost) running.problem = NOT_REACHED;
  else if (models.list.length && !models.chosen) running.problem = "This server has no model for chats.";
  else if (attachments.some(({ url }) => url)) running.problem ||= refusalOf(models);
  running.changed();
  return !running.problem;
}

export function send(chat, text, attachments = [], parent = path(chat).at(-1)?.id ?? ROOT) {
  if (!canSend(chat.settings, attachments)) return;
  const turn = { role: "user", content: text, ...(attachments.length ? { attachments } : {}) };
  const shown = chat.chosen[parent];
  const asked = addTurn(chat, parent, turn);
  answerTo(chat, asked.id, (answer) => {
    chat.chosen[parent] = shown;
    chats.removeTurns(chat, { removed: [asked, answer] });
    const isNew = !Object.keys(chat.turns).length;
    if (isNew) {
      chats.remove(chat);
      drafts.change("", { settings: chat.settings });
    }
    drafts.bringBack(isNew ? "" : chat.id, text, attachments);
  });
}

// Ask again for an answer, with these fields of the request in addition to the settings.
export function regenerate(chat, turn, fields = {}) {
  if (!canSend(chat.settings)) return;
  answerTo(chat, turn.parent, (answer) => {
    chat.chosen[turn.parent] = turn.id;
    chats.removeTurns(chat, { removed: [answer] });
  }, fields);
}

// Make a branch with another text of a turn. A question and a tool's result are answered again; an answer stands as it is.
export function edit(chat, turn, text, attachments) {
  if (turn.role === "user") return send(chat, text, attachments, turn.parent);
  if (turn.role === "assistant") {
    addTurn(chat, turn.parent, { ...emptyAnswer(), content: text, model: turn.model, finish: "edited" });
    return chats.save(chat);
  }
  if (!canSend(chat.settings)) return undefined;
  // The results of calls of one answer follow each other.
  const shown = path(chat);
  const others = shown.slice(shown.indexOf(turn) + 1);
  const end = others.findIndex(({ role }) => role !== "tool");
  let { parent } = turn;
  for (const { call, name, content } of [{ ...turn, content: text }, ...others.slice(0, end < 0 ? undefined : end)]) {
    parent = addTurn(chat, parent, { role: "tool", call, name, content }).id;
  }
  return answerTo(chat, parent);
}

// Whether the model can write on where an answer ended.
export function canContinue(chat, turn) {
  const isWhole = ["stop", "tool_calls", "edited"].includes(turn.finish);
  return !isWhole && turn.content.trim() && !turn.calls.length && !turn.runs?.length && !chat.settings.schema;
}

export function continueAnswer(chat, turn) {
  if (!canSend(chat.settings)) return;
  const body = { ...requestAfter(chat, turn.id), chat_template_kwargs: { continue_final_message: true } };
  running.answer(chat, turn, body);
}

export function goOnFrom(chat, turn) {
  endAt(chat, turn);
  chats.save(chat);
}

// Add the results of a turn's tool calls, and let the model continue.
export function giveResults(chat, turn, results) {
  if (!canSend(chat.settings)) return;
  let parent = turn.id;
  turn.calls.forEach((call, place) => {
    parent = addTurn(chat, parent, { role: "tool", call: call.id, name: call.name, content: results[place] }).id;
  });
  answerTo(chat, parent);
}

// Let the server run those of a turn's calls that the reader has approved, and the model continue. `declined` are the ids
// of the others.
export function approve(chat, turn, declined) {
  if (!canSend(chat.settings)) return;
  let parent = turn.id;
  for (const { id, name } of turn.calls.filter((call) => declined.has(call.id))) {
    parent = addTurn(chat, parent, { role: "tool", call: id, name, content: DECLINED }).id;
  }
  answerTo(chat, parent);
}

function answerTo(chat, parent, takeBack, fields) {
  const body = { ...requestAfter(chat, parent), ...fields };
  const turn = addTurn(chat, parent, emptyAnswer());
  chats.save(chat);
  running.answer(chat, turn, body, takeBack);
  // The request may load the model, or wait until that is loaded.
  if (models.chosen?.state !== "ready") models.follow();
}
