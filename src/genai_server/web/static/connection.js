// Whether the server can be reached. While it cannot, it is asked again and again until it answers.
import { Emitter } from "./emitter.js";

// Milliseconds between two attempts.
const EVERY = 2000;
// What a proxy answers in the place of a server that it does not reach.
const FROM_PROXIES = [502, 503, 504];

export class Unreachable extends Error {
  constructor() {
    super("the server cannot be reached");
  }
}

class Connection extends Emitter {
  isLost = false;

  // The response of a request. Throws Unreachable, or an AbortError.
  async fetch(path, init = {}) {
    try {
      const response = await fetch(path, init);
      // The server's own errors are JSON.
      const isJson = response.headers.get("content-type")?.includes("json");
      if (FROM_PROXIES.includes(response.status) && !isJson) throw new TypeError(response.statusText);
      this.#set(false);
      return response;
    } catch (error) {
      throw this.failure(error, init.signal);
    }
  }

  // What became of a request that ended with this error while it was sent, or while its answer was read.
  failure(error, signal) {
    if (!(error instanceof TypeError) || signal?.aborted) return error;
    this.#set(true);
    return new Unreachable();
  }

  #set(isLost) {
    if (isLost === this.isLost) return;
    this.isLost = isLost;
    if (isLost) this.#tryLater();
    this.changed();
  }

  #tryLater() {
    setTimeout(async () => {
      if (!this.isLost) return;
      if (!document.hidden) await this.fetch("healthz").catch(() => {});
      if (this.isLost) this.#tryLater();
    }, EVERY);
  }
}

export const connection = new Connection();
