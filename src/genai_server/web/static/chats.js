// All chats, kept in this browser's IndexedDB. Without one, as in some private windows, they live as long as the tab.
import { isChat, newChat } from "./chat.js";
import { Emitter } from "./emitter.js";

const STORE = "chats";
const FORMAT = "genai-server chats";

class Chats extends Emitter {
  #database = null;
  #chats = new Map();
  // Why chats are not kept; "" if they are.
  problem = "";

  async load() {
    try {
      // Servers behind prefixes of one host have chats of their own.
      this.#database = await opened(`genai-server ${new URL(".", location.href).pathname}`);
      for (const chat of await done(this.#store("readonly").getAll())) this.#chats.set(chat.id, chat);
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

  async save(chat) {
    this.changed();
    if (!this.#database || !this.#chats.has(chat.id)) return;
    try {
      await done(this.#store("readwrite").put(chat));
      this.problem = "";
    } catch (error) {
      this.problem = `This chat is not kept: ${error.message}`;
    }
  }

  async remove(chat) {
    this.#chats.delete(chat.id);
    this.changed();
    if (this.#database) await done(this.#store("readwrite").delete(chat.id));
  }

  // A file's text with these chats.
  exported(chats = this.found()) {
    return JSON.stringify({ format: FORMAT, version: 1, chats }, null, 1);
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
      this.add(chat);
      await this.save(chat);
    }
    return found.length;
  }

  #store(mode) {
    return this.#database.transaction(STORE, mode).objectStore(STORE);
  }
}

function opened(name) {
  const asked = indexedDB.open(name, 1);
  asked.onupgradeneeded = () => asked.result.createObjectStore(STORE, { keyPath: "id" });
  return done(asked);
}

function done(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

export const chats = new Chats();
