// The models that requests can choose, with their state.
import { ask } from "./api.js";
import { isSound } from "./attachments.js";
import { Emitter } from "./emitter.js";

const KEY = "model";
// Milliseconds until the list is asked for again.
const WHILE_LOADING = 1000;
const LOOKS = 3;
// What a model is for, by its only capability; the others continue texts.
const PURPOSES = { embedding: "embeddings", rerank: "reranking", transcription: "transcription" };

// What a model is for, in words; "" while that is not known.
export function purpose({ chat, capabilities = [] }) {
  if (chat) return "chats";
  return PURPOSES[capabilities[0]] ?? (chat === false ? "raw prompts" : "");
}

export const readsImages = ({ capabilities = [] }) => capabilities.includes("vision");
export const hears = ({ capabilities = [] }) => capabilities.includes("audio");

// Bytes up to which a model knows next to nothing.
const TOY = 50_000_000;

// Whether a model is only good for trying the server; false while that is not known.
export function isToy(model) {
  const { size_bytes: size } = models.details(model);
  return size > 0 && size < TOY;
}

// Why these attachments cannot be sent to the chosen model; "" if they can.
export function refusalOf({ chosen, talking }, attachments) {
  for (const [takes, isMeant, what] of [[readsImages, (each) => each.url && !isSound(each), "images"], [hears, isSound, "recordings"]]) {
    if (!chosen || takes(chosen) || !attachments.some(isMeant)) continue;
    const others = talking.filter(takes).map(({ id }) => id);
    const reads = readsImages(chosen) || hears(chosen) ? `takes no ${what}` : "reads text only";
    return `${chosen.id} ${reads}.${others.length ? ` Choose a model for ${what}: ${others.join(", ")}.` : ""}`;
  }
  return "";
}

// The first model that transcribes; undefined without one.
export function transcriber({ list }) {
  return list.find(({ capabilities = [] }) => capabilities.includes("transcription"));
}

class Models extends Emitter {
  list = [];
  error = "";
  // Whether the list was ever read, and whether it needs a key that the reader did not give.
  isKnown = false;
  needsKey = false;
  // More about each model by its name, once somebody looks at it; null before.
  #details = null;
  #timer = 0;
  #looks = 0;
  #loads = 0;

  async load() {
    clearTimeout(this.#timer);
    const number = ++this.#loads;
    let { list } = this;
    let [message, needsKey] = ["", false];
    try {
      list = (await ask("v1/models")).data;
      this.isKnown = true;
    } catch (error) {
      [message, needsKey] = [error.message, error.status === 401];
    }
    if (number !== this.#loads) return; // A later answer is newer, whichever comes first.
    this.list = list;
    this.error = message;
    this.needsKey = needsKey;
    if (this.#looks || this.list.some((model) => ["loading", "unloading"].includes(model.state))) this.#loadLater();
    this.changed();
  }

  async loadDetails() {
    if (!this.list.length) return;
    try {
      this.#details = new Map((await ask("api/v1/models")).models.map((each) => [each.key, each]));
    } catch {
      // They are not needed for a chat.
      this.#details ??= new Map();
    }
    this.changed();
  }

  get areDetailsKnown() {
    return this.#details !== null;
  }

  hasDetails(model) {
    return this.#details?.has(model.parent ?? model.root) ?? false;
  }

  // {size_bytes, architecture} of a model, as far as they are known.
  details(model) {
    return this.#details?.get(model?.parent ?? model?.root) ?? {};
  }

  // Load the list, and look again for some seconds: a model is loading only some time after it was asked for.
  async follow() {
    this.#looks = LOOKS;
    await this.load();
  }

  #loadLater() {
    this.#timer = setTimeout(() => {
      if (document.hidden) return this.#loadLater();
      this.#looks = Math.max(0, this.#looks - 1);
      return this.load();
    }, WHILE_LOADING);
  }

  // The models and adapters for chats, without their other names. One that is not loaded yet may turn out to be for raw
  // prompts only.
  get talking() {
    return this.list.filter((model) => ["chats", ""].includes(purpose(model)) && !this.#isAlias(model));
  }

  #isAlias({ id, root, parent }) {
    return !parent && id !== root && this.list.some((other) => other.id === root);
  }

  // The model for chats with this name or other name; undefined without one.
  called(name) {
    const id = this.list.find((model) => model.id === name && this.#isAlias(model))?.root ?? name;
    return this.talking.find((model) => model.id === id);
  }

  // The chosen model; the first one for chats if none was chosen, or if that is gone.
  get chosen() {
    return this.called(localStorage.getItem(KEY)) ?? this.talking[0];
  }

  choose(id) {
    localStorage.setItem(KEY, id);
    this.changed();
  }
}

export const models = new Models();
