// Says that the context of a chat is full, and offers how to continue.
import { path } from "./chat_tree.js";
import { figuresOf, isTooLong, mostLeftOut } from "./context.js";
import { continueInNewChat, continueWithoutOldest } from "./chat_actions.js";
import { whole } from "./figures.js";
import { html } from "./html.js";
import { go } from "./place.js";

export function ContextNotice({ chat, turn, isBusy }) {
  const summarize = () => {
    const made = continueInNewChat(chat);
    if (made) go("chat", made.id);
  };
  const shown = path(chat);
  const hasAnswers = shown.some(({ role, content }) => role === "assistant" && content);
  return html`<div class="notice" role="group" aria-label="The context is full">
    <p><strong>The context is full.</strong> ${inWords(turn)}${hasAnswers ? "" : " Shorten the message, or attach less."}</p>
    <div class="actions">
      ${mostLeftOut(shown) > 0 && html`<button type="button" disabled=${isBusy}
        onClick=${() => continueWithoutOldest(chat, turn)}>Leave out the oldest messages</button>`}
      ${hasAnswers && html`<button type="button" class="primary" disabled=${isBusy} onClick=${summarize}>New chat with a summary</button>`}
    </div></div>`;
}

function inWords(turn) {
  const { tokens, limit } = figuresOf(turn);
  if (!isTooLong(turn)) return `The answer ends at ${whole(tokens)} of ${whole(limit)} tokens.`;
  if (!tokens) return turn.error;
  return `The messages have ${whole(tokens)} tokens. The model reads at most ${whole(limit)}, with its answer.`;
}
