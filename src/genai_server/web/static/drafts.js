// What the reader has written and attached but not sent, for each chat; "" is the next new chat, which has settings, too.
import { Emitter } from "./emitter.js";
import { presets } from "./presets.js";

class Drafts extends Emitter {
  #drafts = new Map();

  of(chatId) {
    return this.#drafts.get(chatId) ?? { text: "", attachments: [], settings: chatId ? {} : presets.defaults };
  }

  change(chatId, fields) {
    this.#drafts.set(chatId, { ...this.of(chatId), ...fields });
    this.changed();
  }

  clear(chatId) {
    this.#drafts.delete(chatId);
    this.changed();
  }

  // Put what could not be sent before what was written since.
  bringBack(chatId, text, attachments = []) {
    const draft = this.of(chatId);
    this.change(chatId, {
      text: [text, draft.text].filter((each) => each.trim()).join("\n\n"),
      attachments: [...attachments, ...draft.attachments],
    });
  }
}

export const drafts = new Drafts();
