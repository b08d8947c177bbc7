// What can be done with a turn, and the figures of an answer.
import { branches, choose, removalOf } from "./chat_tree.js";
import { chats } from "./chats.js";
import { rate } from "./completion.js";
import { confirmation } from "./confirmation.js";
import { isContextFull } from "./context.js";
import { continueAnswer, canContinue, goOnFrom, regenerate } from "./chat_actions.js";
import { number, time, whole } from "./figures.js";
import { html, useState } from "./html.js";
import { IconButton } from "./icons.js";
import { copyText } from "./parts.js";

const ENDS = {
  timeout: "timed out", cancelled: "cancelled by an operator",
  terminated: "ended by an operator", repetition: "repeated itself", stopped: "stopped", edited: "edited by you",
  incomplete_call: "ended within a tool call",
};

// How an answer ended, where that is not by itself.
function endOf(turn) {
  if (turn.finish !== "length") return ENDS[turn.finish];
  if (isContextFull(turn)) return "the context is full";
  // Answers of earlier versions of this page do not tell who has set the limit.
  return turn.maxTokens === undefined ? "stopped at a limit" : turn.maxTokens ? "stopped at max tokens" : "stopped at the server's limit";
}

export function TurnTools({ chat, turn, isBusy, isLast, onEdit, onInspect }) {
  const [areFiguresShown, setFiguresShown] = useState(false);
  const isAnswer = turn.role === "assistant";
  return html`<div class="turn-tools">
      <${Branches} chat=${chat} turn=${turn} isBusy=${isBusy} />
      ${isAnswer && endOf(turn) && html`<span class="end">${endOf(turn)}</span>`}
      ${isAnswer && isLast && !isContextFull(turn) && canContinue(chat, turn) && html`<button type="button" class="small" disabled=${isBusy}
        onClick=${() => continueAnswer(chat, turn)}>Continue</button>`}
      <span class="actions-of-turn">
        ${turn.content && html`<${CopyIcon} text=${turn.content} />`}
        ${onEdit && html`<${IconButton} icon="edit" label=${isAnswer ? "Edit answer" : "Edit"} disabled=${isBusy} onClick=${onEdit} />`}
        ${isAnswer && html`<${IconButton} icon="regenerate" label="Regenerate" disabled=${isBusy} onClick=${() => regenerate(chat, turn)} />`}
        ${isAnswer && !isLast && html`<${IconButton} icon="branch" label="Continue from here" disabled=${isBusy}
          onClick=${() => goOnFrom(chat, turn)} />`}
        ${isAnswer && turn.pieces.length > 0 && html`<${IconButton} icon="inspect" label="Inspect tokens" onClick=${() => onInspect(turn)} />`}
        <${IconButton} icon="remove" label="Delete message" disabled=${isBusy} onClick=${() => remove(chat, turn)} />
        ${isAnswer && turn.usage && html`<${IconButton} icon="figures" label="Figures" aria-expanded=${areFiguresShown}
          onClick=${() => setFiguresShown(!areFiguresShown)} />`}
      </span>
    </div>
    ${areFiguresShown && html`<${Figures} turn=${turn} />`}`;
}

function CopyIcon({ text }) {
  const [isCopied, setCopied] = useState(false);
  const copy = async () => {
    await copyText(text);
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  return html`<${IconButton} icon=${isCopied ? "check" : "copy"} label=${isCopied ? "Copied" : "Copy"} onClick=${copy} />`;
}

async function remove(chat, turn) {
  const removal = removalOf(chat, turn);
  const others = removal.removed.length - 1;
  const more = others ? ` and ${others === 1 ? "the message" : `${others} messages`} that belong${others === 1 ? "s" : ""} to it` : "";
  const question = { title: "Delete this message?", text: `It${more} cannot be brought back.`, action: "Delete" };
  if (await confirmation.ask(question)) chats.removeTurns(chat, removal);
}

function Branches({ chat, turn, isBusy }) {
  const all = branches(chat, turn);
  if (all.length < 2) return null;
  const place = all.indexOf(turn);
  const go = (to) => {
    choose(chat, all[to]);
    chats.save(chat);
  };
  return html`<span class="branches">
    <button type="button" class="quiet" aria-label="Earlier version" disabled=${isBusy || place === 0}
      onClick=${() => go(place - 1)}>‹</button>
    <span aria-label=${`Version ${place + 1} of ${all.length}`}>${place + 1}/${all.length}</span>
    <button type="button" class="quiet" aria-label="Later version" disabled=${isBusy || place === all.length - 1}
      onClick=${() => go(place + 1)}>›</button></span>`;
}

function Figures({ turn }) {
  const { usage, ttft, model } = turn;
  const found = [
    [model, (value) => value, "the model"],
    [rate(turn), (value) => `${number(value)} tokens/s`, "speed of the answer"],
    [ttft, (value) => `first token after ${time(value)}`, "as this browser saw it"],
    [usage.completion_tokens, (value) => `${whole(value)} tokens`, "tokens of the answer"],
    [usage.prompt_tokens, (value) => `prompt ${whole(value)}`, "tokens of the prompt"],
    [usage.prompt_tokens_details?.cached_tokens || null, (value) => `${whole(value)} cached`, "of these, found in the cache"],
  ].filter(([value]) => value !== null && value !== undefined);
  return html`<p class="facts">${found.map(([value, words, title]) =>
    html`<span key=${title} title=${title}>${words(value)}</span>`)}</p>`;
}
