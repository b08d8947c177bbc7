// The models that requests can choose, with their state.
import { ask } from "./api.js";
import { Emitter } from "./emitter.js";

const KEY = "model";
// Milliseconds until the list is asked for again.
const WHILE_LOADING = 1000;

class Models extends Emitter {
  list = [];
  error = "";
  #timer = 0;

  async load() {
    clearTimeout(this.#timer);
    try {
      this.list = (await ask("v1/models")).data;
      this.error = "";
    } catch (error) {
      this.error = error.message;
    }
    if (this.list.some((model) => ["loading", "unloading"].includes(model.state))) {
      this.#timer = setTimeout(() => this.load(), WHILE_LOADING);
    }
    this.changed();
  }

  // The chosen model; the first one if none was chosen, or if that is gone.
  get chosen() {
    const id = localStorage.getItem(KEY);
    return this.list.find((model) => model.id === id) ?? this.list[0];
  }

  choose(id) {
    localStorage.setItem(KEY, id);
    this.changed();
  }
}

export const models = new Models();
