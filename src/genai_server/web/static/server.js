// The server's state while it is shown: polled every two seconds, and never while the page is hidden.
import { ApiError, ask } from "./api.js";
import { connection, Unreachable } from "./connection.js";
import { Emitter } from "./emitter.js";
import { LoadHistory } from "./load_history.js";

const EVERY = 2000;
// Ended requests that the server keeps.
export const MAX_ENDED = 200;

class Server extends Emitter {
  health = null;
  // Requests that run or wait, and those that have ended, the newest first.
  requests = [];
  ended = [];
  history = new LoadHistory();
  // Why something is not shown; "" if everything is.
  problem = "";
  noMetrics = "";
  // Whether the caller may use the admin endpoints: null until it is known; `refused` says why not.
  isAdmin = null;
  refused = "";
  #timer = 0;
  #watchers = 0;

  // Start polling; returns a function that stops it.
  watch() {
    this.#watchers += 1;
    if (this.#watchers === 1) this.#poll();
    return () => {
      this.#watchers -= 1;
      if (!this.#watchers) clearTimeout(this.#timer);
    };
  }

  // Find out what the caller may do.
  async findRights() {
    try {
      await ask("v1/requests", { admin: true });
      [this.isAdmin, this.refused] = [true, ""];
    } catch (error) {
      // Without an engine nothing can be listed, but the caller may.
      if (error.code === "no_engine_ready") [this.isAdmin, this.refused] = [true, ""];
      else if (error instanceof ApiError && [401, 403].includes(error.status)) {
        [this.isAdmin, this.refused] = [false, error.message];
      }
    }
    this.changed();
  }

  async refresh() {
    this.problem = "";
    await this.#attempt(async () => { this.health = await ask("healthz", { admin: true }); });
    if (this.isAdmin && !connection.isLost) {
      await this.#attempt(async () => { await this.#readRequests(); }, () => { this.requests = []; });
    }
    if (!connection.isLost && !this.noMetrics) await this.#attempt(() => this.#readHistory());
    this.changed();
  }

  async #attempt(work, onFailure = () => {}) {
    try {
      await work();
    } catch (error) {
      onFailure();
      if (!(error instanceof Unreachable)) this.problem ||= error.message;
    }
  }

  async #readRequests() {
    const ended = (await ask(`v1/requests/ended?since=${this.ended[0]?.ended ?? 0}`, { admin: true })).data;
    this.ended = [...ended, ...this.ended].slice(0, MAX_ENDED);
    this.requests = (await ask("v1/requests", { admin: true })).data;
  }

  async #readHistory() {
    try {
      this.history.add(await ask(`metrics/history?since=${this.history.newest}`, { admin: true }));
    } catch (error) {
      if (error.status !== 404) throw error;
      this.noMetrics = "GENAI_METRICS is off: there are no charts.";
    }
  }

  async #poll() {
    if (!document.hidden) {
      if (this.isAdmin === null) await this.findRights();
      await this.refresh();
    }
    clearTimeout(this.#timer);
    if (this.#watchers) this.#timer = setTimeout(() => this.#poll(), EVERY);
  }

  // The devices of all models: {model, device, status}. Without a key only the states are known.
  get devices() {
    if (!this.health) return [];
    const models = this.health.models ?? { "": { devices: this.health.devices } };
    return Object.entries(models).flatMap(([model, about]) => {
      const devices = Object.entries(about.devices);
      return devices.map(([device, status]) => ({ model, device, status }));
    });
  }
}

export const server = new Server();
