// Asks the reader before something is done that cannot be undone.
import { Emitter, useChanges } from "./emitter.js";
import { html } from "./html.js";
import { Dialog, focused } from "./parts.js";

class Confirmation extends Emitter {
  // What the reader is asked: {title, text, action, isSafe, settle}; null while nothing is asked.
  question = null;

  // Whether the reader agrees; `action` is the button's word for it, which looks destructive unless it `isSafe`.
  ask(question) {
    this.answer(false);
    return new Promise((settle) => {
      this.question = { ...question, settle };
      this.changed();
    });
  }

  answer(isAgreed) {
    this.question?.settle(isAgreed);
    this.question = null;
    this.changed();
  }
}

export const confirmation = new Confirmation();

export function ConfirmationDialog() {
  useChanges(confirmation);
  const { question } = confirmation;
  return question && html`<${Dialog} key=${question.title} title=${question.title} onClose=${() => confirmation.answer(false)}>
    <p>${question.text}</p>
    <div class="actions"><button type="button" ref=${focused} onClick=${() => confirmation.answer(false)}>Cancel</button>
      <button type="button" class=${question.isSafe ? "primary" : "destructive"} onClick=${() => confirmation.answer(true)}>${question.action}</button></div><//>`;
}
