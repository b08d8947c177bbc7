// All chats, kept in this browser. Without a database, as in some private windows, they live as long as the tab.
import { imagesOf, isChat, newChat, newId, withAttachments } from "./chat.js";
import { ChatDatabase } from "./chat_database.js";
import { Emitter } from "./emitter.js";

const FORMAT = "genai-server chats";

class Chats extends Emitter {
  #database = null;
  #chats = new Map();
  // The chats whose images were read.
  #opened = new WeakSet();
  // The attachments whose images are in the database.
  #kept = new WeakSet();
  // Why chats are not kept; "" if they are.
  problem = "";

  async load() {
    try {
      // Servers behind prefixes of one host have chats of their own.
      this.#database = await ChatDatabase.open(`genai-server ${new URL(".", location.href).pathname}`);
      for (const chat of await this.#database.chats()) this.#chats.set(chat.id, chat);
    } catch (error) {
      this.problem = `Chats are not kept: ${error.message}`;
    }
    this.changed();
  }

  get(id) {
    return this.#chats.get(id);
  }

  // The chats with a text, the newest first.
  found(text = "") {
    const wanted = text.trim().toLowerCase();
    const has = (chat) => [chat.title, ...Object.values(chat.turns).map((turn) => turn.content)]
      .some((each) => each.toLowerCase().includes(wanted));
    return [...this.#chats.values()].filter((chat) => !wanted || has(chat))
      .sort((one, other) => other.updated - one.updated);
  }

  add(chat = newChat()) {
    this.#chats.set(chat.id, chat);
    this.changed();
    return chat;
  }

  // Whether the images of a chat are there, as far as they can be read.
  isOpen(chat) {
    return this.#opened.has(chat) || imagesOf(chat).every(({ url }) => url);
  }

  // Read the images of a chat.
  async open(chat) {
    if (this.isOpen(chat)) return;
    try {
      const urls = await this.#database.urls(chat);
      for (const each of imagesOf(chat).filter(({ url }) => !url)) {
        each.url = urls.get(each.image);
        this.#kept.add(each);
      }
    } catch (error) {
      this.problem = `The images of this chat cannot be read: ${error.message}`;
    }
    this.#opened.add(chat);
    this.changed();
  }

  // Free the memory of the images that can be read again.
  close(chat) {
    for (const each of imagesOf(chat)) {
      if (this.#kept.has(each)) delete each.url;
    }
    this.#opened.delete(chat);
  }

  async save(chat) {
    this.changed();
    if (!this.#database || !this.#chats.has(chat.id)) return;
    const images = imagesOf(chat).filter((each) => each.url && !this.#kept.has(each));
    for (const each of images) each.image ??= newId();
    try {
      await this.#database.put(chat, images);
      for (const each of images) this.#kept.add(each);
      this.problem = "";
    } catch (error) {
      this.problem = `This chat is not kept: ${error.message}`;
    }
  }

  async remove(chat) {
    this.#chats.delete(chat.id);
    this.changed();
    if (this.#database) await this.#database.remove(chat);
  }

  // A file's text with these chats. Throws Error if their images cannot be read.
  async exported(chats = this.found()) {
    const whole = [];
    for (const chat of chats) {
      const urls = this.isOpen(chat) ? new Map() : await this.#database.urls(chat);
      whole.push(withAttachments(chat, ({ image, ...each }) => {
        const url = each.url ?? urls.get(image);
        return url ? [{ ...each, url }] : image ? [] : [each];
      }));
    }
    return JSON.stringify({ format: FORMAT, version: 1, chats: whole }, null, 1);
  }

  // Add the chats of such a text; their number. A chat that is there already is replaced. Throws Error.
  async imported(text) {
    let file;
    try {
      file = JSON.parse(text);
    } catch {
      throw new Error("the file is not JSON");
    }
    const found = file?.format === FORMAT && Array.isArray(file.chats) ? file.chats : [];
    if (!found.length || !found.every(isChat)) throw new Error("the file has no chats of genai-server");
    for (const chat of found) {
      if (this.#chats.has(chat.id)) await this.remove(chat);
      await this.save(this.add(withAttachments(chat, ({ image, ...each }) => [each])));
    }
    return found.length;
  }
}

export const chats = new Chats();
