// All chats, kept in this browser for all of its tabs. Without a database, as in some private windows, they live as long
// as the tab.
import { completed, imagesOf, isChat, merge, newId, removeTurns, withAttachments } from "./chat_tree.js";
import { ChatDatabase } from "./chat_database.js";
import { Emitter } from "./emitter.js";

// Milliseconds after which an answer of another tab that no longer grows is taken for one that ended.
const LONGEST_PAUSE = 5000;
const FORMAT = "genai-server chats";

class Chats extends Emitter {
  #database = null;
  #chats = new Map();
  // The chats that are in the database.
  #written = new WeakSet();
  // The turns that are in the database as they are here.
  #writtenTurns = new WeakSet();
  // The turns that grow in this tab.
  #growing = new WeakSet();
  // How often this tab has changed each chat.
  #changes = new WeakMap();
  // The chats that are shown, with their images.
  #opened = new WeakSet();
  // The attachments whose images are in the database.
  #kept = new WeakSet();
  // The chats that other tabs have changed since this one was seen.
  #changedElsewhere = new Set();
  // When another tab has last written to an unfinished answer, by the id of its chat.
  #grownElsewhere = new Map();
  // Why chats are not kept; "" if they are.
  problem = "";

  async load() {
    try {
      // Servers behind prefixes of one host have chats of their own.
      this.#database = await ChatDatabase.open(`genai-server ${new URL(".", location.href).pathname}`);
      this.#database.listen((id) => {
        this.#changedElsewhere.add(id);
        this.#readChanges();
      });
      addEventListener("visibilitychange", () => this.#readChanges());
      for (const chat of await this.#database.chats()) this.#take(chat);
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

  add(chat) {
    this.#chats.set(chat.id, chat);
    this.changed();
    return chat;
  }

  // Whether the images of a chat are there; those that cannot be read are skipped.
  isOpen(chat) {
    return this.#opened.has(chat) || imagesOf(chat).every(({ url }) => url);
  }

  // Read the images of a chat.
  async open(chat) {
    if (!this.isOpen(chat)) await this.#readImages(chat);
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

  // A turn grows from now on: it is written each time its chat is saved.
  begin(turn) {
    this.#growing.add(turn);
  }

  // A turn grows no more.
  end(turn) {
    this.#growing.delete(turn);
    this.#writtenTurns.delete(turn);
  }

  // Whether another tab is receiving an answer in a chat.
  isGrowingElsewhere(chat) {
    return performance.now() - (this.#grownElsewhere.get(chat.id) ?? -Infinity) < LONGEST_PAUSE && this.#hasUnfinished(chat);
  }

  // Write the new turns of a chat, the branches that it shows and `fields`.
  async save(chat, fields = {}) {
    Object.assign(chat, fields);
    this.changed();
    if (!this.#database || this.get(chat.id) !== chat) return;
    const turns = this.#unwritten(chat);
    const images = imagesOf(chat).filter((each) => each.url && !this.#kept.has(each));
    for (const each of images) each.image ??= newId();
    await this.#write(chat, () => (this.#written.has(chat)
      ? this.#database.change(chat, { fields: { ...fields, chosen: chat.chosen }, turns, images })
      : this.#database.add(chat, images)), () => {
      this.#written.add(chat);
      for (const turn of turns) this.#writtenTurns.add(turn);
      for (const each of images) this.#kept.add(each);
    });
  }

  // Remove turns of a chat; `removal` is as of `removalOf`.
  async removeTurns(chat, removal) {
    removeTurns(chat, removal);
    this.changed();
    if (!this.#written.has(chat)) return;
    const { removed, moved: turns = [] } = removal;
    await this.#write(chat, () => this.#database.change(chat, { fields: { chosen: chat.chosen }, turns, removed }));
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
      await this.save(this.add(completed(withAttachments(chat, ({ image, ...each }) => [each]))));
    }
    return found.length;
  }

  #unwritten(chat) {
    return Object.values(chat.turns).filter((turn) => !this.#writtenTurns.has(turn) || this.#growing.has(turn));
  }

  async #write(chat, work, done = () => {}) {
    this.#changes.set(chat, this.#changesOf(chat) + 1);
    try {
      await work();
      done();
      this.problem = "";
    } catch (error) {
      this.problem = `This chat is not kept: ${error.message}`;
      this.changed();
    }
  }

  #take(chat) {
    this.#chats.set(chat.id, chat);
    this.#written.add(chat);
    this.#noteWritten(chat.turns);
  }

  #hasUnfinished({ turns }) {
    return Object.values(turns).some((turn) => turn.role === "assistant" && turn.finish === null && !this.#growing.has(turn));
  }

  #changesOf(chat) {
    return this.#changes.get(chat) ?? 0;
  }

  // Note that these turns are as the database has them.
  #noteWritten(turns) {
    for (const turn of Object.values(turns)) this.#writtenTurns.add(turn);
    for (const each of imagesOf({ turns })) if (each.image) this.#kept.add(each);
  }

  async #readImages(chat) {
    try {
      const urls = await this.#database.urls(chat);
      for (const each of imagesOf(chat)) each.url ??= urls.get(each.image);
    } catch (error) {
      this.problem = `The images of this chat cannot be read: ${error.message}`;
    }
  }

  // Read what other tabs have written. A tab that is hidden reads later.
  async #readChanges() {
    if (document.hidden) return;
    try {
      for (const id of this.#changedElsewhere) {
        this.#changedElsewhere.delete(id);
        await this.#read(id);
      }
    } catch (error) {
      this.problem = `What another tab wrote cannot be read: ${error.message}`;
    }
    this.changed();
  }

  async #read(id) {
    const chat = this.#chats.get(id);
    const changes = chat && this.#changesOf(chat);
    const written = await this.#database.chat(id);
    if (this.#chats.get(id) !== chat || (chat && this.#changesOf(chat) !== changes)) this.#changedElsewhere.add(id);
    else if (!written) this.#chats.delete(id);
    else if (!chat) this.#take(written);
    else {
      merge(chat, written, new Set(this.#unwritten(chat)), this.#opened.has(chat));
      this.#noteWritten(written.turns);
      if (this.#opened.has(chat)) await this.#readImages(chat);
    }
    if (written && this.#hasUnfinished(this.#chats.get(id))) {
      this.#grownElsewhere.set(id, performance.now());
      setTimeout(() => this.changed(), LONGEST_PAUSE);
    }
  }
}

export const chats = new Chats();
