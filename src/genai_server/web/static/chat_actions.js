// What the reader does in a chat: send, stop, regenerate, edit, continue from a turn, answer tool calls.
import { addTurn, endAt, messages, newChat, path, pathTo, ROOT, showAfter } from "./chat_tree.js";
import { chats } from "./chats.js";
import { requestFields, requestHeaders, systemMessages } from "./chat_settings.js";
import { complete, emptyAnswer } from "./completion.js";
import { connection } from "./connection.js";
import { isTooLong, mostLeftOut, numTooMany, roomFor, shortened, withoutOldest } from "./context.js";
import { drafts } from "./drafts.js";
import { Emitter } from "./emitter.js";
import { models, refusalOf } from "./models.js";

// Milliseconds between two saves of a running answer.
const SAVE_EVERY = 1000;
const DECLINED = "Error: the user has declined this call.";
const SUMMARIZE = "Summarize our conversation so far in a few paragraphs: what I want, what was found and decided, and what is "
  + "still open. We continue with this summary.";
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

  // Let a turn grow into the answer to what follows `parent`. `fields` are added to the request, and `takeBack` is called
  // if the server was not reached.
  async answer(chat, turn, parent, { fields = {}, takeBack } = {}) {
    const controller = new AbortController();
    this.#controllers.set(chat.id, controller);
    let next = performance.now() + SAVE_EVERY;
    chats.begin(turn);
    turn.context = models.chosen?.max_model_len ?? null;
    turn.leftOut = numLeftOut(chat, parent);
    const most = chat.settings.leave_out_oldest ? mostLeftOut(saidBefore(chat, parent)) : 0;
    let wasReached;
    // Only the server knows the tokens: where the estimate was too low, more is left out.
    for (;;) {
      const body = { ...requestAfter(chat, parent, turn.leftOut), ...fields };
      wasReached = await complete({ body, headers: requestHeaders(chat.settings) }, turn, () => {
        this.changed();
        const now = performance.now();
        if (now < next) return;
        next = Infinity;
        chats.save(chat).then(() => { next = performance.now() + SAVE_EVERY; });
      }, controller.signal);
      if (!isTooLong(turn) || turn.leftOut >= most) break;
      turn.leftOut += 1;
    }
    chats.end(turn);
    this.#controllers.delete(chat.id);
    if (wasReached || !takeBack) chat.updated = Date.now();
    else takeBack(turn);
    await chats.save(chat);
    this.changed();
  }
}

export const running = new Running();

// The body of a request that continues after a turn, without some of the oldest questions and their answers. Throws Error if
// a setting is wrong.
export function requestAfter(chat, id, leftOut = numLeftOut(chat, id)) {
  const begun = chats.get(chat.turns[id]?.summaryOf);
  if (begun) return requestForSummary(begun, chat.turns[id]);
  return {
    model: models.chosen?.id,
    messages: [...systemMessages(chat.settings), ...withoutOldest(saidBefore(chat, id), leftOut).flatMap(messages)],
    ...requestFields(chat.settings),
  };
}

// The body of a request for the summary of a chat, with which another one begins.
function requestForSummary(chat, question) {
  const said = path(chat).filter(isSaid);
  const earlier = shortened(said, roomFor(said, models.chosen?.max_model_len));
  return { model: models.chosen?.id, messages: [...systemMessages(chat.settings), ...earlier, ...messages(question)] };
}

const saidBefore = (chat, id) => pathTo(chat, id).filter(isSaid);

function numLeftOut(chat, id) {
  return chat.settings.leave_out_oldest ? numTooMany(saidBefore(chat, id), models.chosen?.max_model_len) : 0;
}

// Whether a turn of a path is sent to the model. An answer that failed before its first word says nothing. A question that the
// server refused would be the reason to refuse all that follow it.
function isSaid(turn, place, path) {
  if (turn.role === "assistant") return turn.content.trim() || turn.calls.length || turn.runs?.length;
  const next = path[place + 1];
  return turn.role !== "user" || !next?.isRefused || Boolean(next.content);
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
  else running.problem ||= refusalOf(models, attachments);
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
  running.answer(chat, turn, turn.id, { fields: { chat_template_kwargs: { continue_final_message: true } } });
}

// Leave out the oldest messages of a chat whose context is full, from now on, and answer again, or continue the answer.
export function continueWithoutOldest(chat, turn) {
  chats.save(chat, { settings: { ...chat.settings, leave_out_oldest: true } });
  if (canContinue(chat, turn)) return continueAnswer(chat, turn);
  if (!canSend(chat.settings)) return undefined;
  if (!turn.content) chats.removeTurns(chat, { removed: [turn] });
  return answerTo(chat, turn.parent);
}

// Begin another chat with a summary of this one; undefined if that cannot be asked for. A question that had no answer is what
// the reader can send there.
export function continueInNewChat(chat) {
  if (!canSend(chat.settings)) return undefined;
  const shown = path(chat);
  const [question, answer] = shown.slice(-2);
  const { leave_out_oldest, ...settings } = chat.settings;
  const made = chats.add(newChat(settings));
  made.title = `${chat.title} (continued)`;
  const asked = addTurn(made, ROOT, { role: "user", content: SUMMARIZE, summaryOf: chat.id });
  answerTo(made, asked.id, () => chats.remove(made));
  if (answer && isTooLong(answer) && question.role === "user") drafts.bringBack(made.id, question.content, question.attachments);
  return made;
}

export function goOnFrom(chat, turn) {
  endAt(chat, turn);
  chats.save(chat);
}

export function showLater(chat, turn) {
  showAfter(chat, turn);
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
  const turn = addTurn(chat, parent, emptyAnswer());
  chats.save(chat);
  running.answer(chat, turn, parent, { fields, takeBack });
  // The request may load the model, or wait until that is loaded.
  if (models.chosen?.state !== "ready") models.follow();
}
