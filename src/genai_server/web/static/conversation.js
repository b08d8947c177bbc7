// What the reader does in a chat: send, stop, regenerate, edit, continue from a turn, answer tool calls.
import { addTurn, endAt, message, path, pathTo, ROOT } from "./chat.js";
import { chats } from "./chats.js";
import { complete, emptyAnswer } from "./completion.js";
import { Emitter } from "./emitter.js";
import { models } from "./models.js";
import { options } from "./options.js";

// Milliseconds between two saves of a running answer.
const SAVE_EVERY = 1000;

class Running extends Emitter {
  // Why the last message was not sent; "" if it was.
  problem = "";
  // Functions that stop an answer, keyed by chat id.
  #controllers = new Map();

  has(chat) {
    return this.#controllers.has(chat.id);
  }

  stop(chat) {
    this.#controllers.get(chat.id)?.abort();
  }

  async answer(chat, turn, body) {
    const controller = new AbortController();
    this.#controllers.set(chat.id, controller);
    let saved = performance.now();
    await complete(body, turn, () => {
      this.changed();
      if (performance.now() - saved > SAVE_EVERY) {
        saved = performance.now();
        chats.save(chat);
      }
    }, controller.signal);
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

// Whether the options make a request; else `running` has the problem.
export function canSend() {
  running.problem = "";
  try {
    options.fields();
  } catch (error) {
    running.problem = error.message;
  }
  if (models.list.length && !models.chosen) running.problem = "This server has no model for chats.";
  running.changed();
  return !running.problem;
}

export function send(chat, text, parent = path(chat).at(-1)?.id ?? ROOT) {
  if (canSend()) answerTo(chat, addTurn(chat, parent, { role: "user", content: text }).id);
}

export function regenerate(chat, turn) {
  if (canSend()) answerTo(chat, turn.parent);
}

export function edit(chat, turn, text) {
  send(chat, text, turn.parent);
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
