// What the reader does in a chat: send, stop, regenerate, edit, continue from a turn, answer tool calls.
import { addTurn, endAt, message, path, pathTo, ROOT } from "./chat.js";
import { chats } from "./chats.js";
import { complete, emptyAnswer } from "./completion.js";
import { Emitter } from "./emitter.js";
import { models, refusalOf } from "./models.js";
import { options } from "./options.js";

// Milliseconds between two saves of a running answer.
const SAVE_EVERY = 1000;

class Running extends Emitter {
  // Why the last message was not sent; "" if it was.
  problem = "";
  // Functions that stop an answer, keyed by chat id.
  #controllers = new Map();

  constructor() {
    super();
    // A chat may be removed in this tab or another one.
    chats.listen(() => { for (const id of this.#controllers.keys()) if (!chats.get(id)) this.stop({ id }); });
  }

  has(chat) {
    return this.#controllers.has(chat.id);
  }

  stop(chat) {
    this.#controllers.get(chat.id)?.abort();
  }

  async answer(chat, turn, body) {
    const controller = new AbortController();
    this.#controllers.set(chat.id, controller);
    let next = performance.now() + SAVE_EVERY;
    chats.begin(turn);
    await complete(body, turn, () => {
      this.changed();
      const now = performance.now();
      if (now < next) return;
      next = Infinity;
      chats.save(chat).then(() => { next = performance.now() + SAVE_EVERY; });
    }, controller.signal);
    chats.end(turn);
    this.#controllers.delete(chat.id);
    chat.updated = Date.now();
    await chats.save(chat);
    this.changed();
  }
}

export const running = new Running();

// The body of a request that continues after a turn. Throws Error if an option is wrong.
export function requestAfter(chat, id) {
  const system = options.get("system").trim() ? [{ role: "system", content: options.get("system") }] : [];
  return {
    model: models.chosen?.id,
    messages: [...system, ...pathTo(chat, id).map(message)],
    ...options.fields(),
  };
}

// Whether the options and these new attachments make a request; else `running` has the problem.
export function canSend(attachments = []) {
  running.problem = "";
  try {
    options.fields();
  } catch (error) {
    running.problem = error.message;
  }
  if (models.list.length && !models.chosen) running.problem = "This server has no model for chats.";
  else if (attachments.some(({ url }) => url)) running.problem ||= refusalOf(models);
  running.changed();
  return !running.problem;
}

export function send(chat, text, attachments = [], parent = path(chat).at(-1)?.id ?? ROOT) {
  if (!canSend(attachments)) return;
  const turn = { role: "user", content: text, ...(attachments.length ? { attachments } : {}) };
  answerTo(chat, addTurn(chat, parent, turn).id);
}

export function regenerate(chat, turn) {
  if (canSend()) answerTo(chat, turn.parent);
}

export function edit(chat, turn, text, attachments) {
  send(chat, text, attachments, turn.parent);
}

export function goOnFrom(chat, turn) {
  endAt(chat, turn);
  chats.save(chat);
}

// Add the results of a turn's tool calls, and let the model continue.
export function giveResults(chat, turn, results) {
  if (!canSend()) return;
  let parent = turn.id;
  turn.calls.forEach((call, place) => {
    parent = addTurn(chat, parent, { role: "tool", call: call.id, name: call.name, content: results[place] }).id;
  });
  answerTo(chat, parent);
}

function answerTo(chat, parent) {
  const body = requestAfter(chat, parent);
  const turn = addTurn(chat, parent, emptyAnswer());
  chats.save(chat);
  running.answer(chat, turn, body);
  // The request may load the model, or wait until that is loaded.
  if (models.chosen?.state !== "ready") models.follow();
}
