// The server's state while it is shown: polled every two seconds, and never while the page is hidden.
import { ApiError, ask, call } from "./api.js";
import { connection, Unreachable } from "./connection.js";
import { Emitter } from "./emitter.js";
import { Interval, Metrics } from "./metrics.js";

const EVERY = 2000;
// Points of the charts: five minutes.
const MOST = 150;
const SERIES = ["times", "output", "prompt", "ttft", "gap", "gap95", "running", "waiting", "hits"];

class Server extends Emitter {
  health = null;
  requests = [];
  // Why something is not shown; "" if everything is.
  problem = "";
  noMetrics = "";
  metrics = null;
  // Columns of the charts.
  series = Object.fromEntries(SERIES.map((name) => [name, []]));
  // Whether the caller may use the admin endpoints: null until it is known; `refused` says why not.
  isAdmin = null;
  refused = "";
  #before = null;
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
    try {
      this.health = await ask("healthz", { admin: true });
      if (this.isAdmin) this.requests = (await ask("v1/requests", { admin: true })).data;
      this.problem = "";
    } catch (error) {
      this.problem = error instanceof Unreachable ? "" : error.message;
      this.requests = [];
    }
    if (!connection.isLost) await this.#scrape();
    this.changed();
  }

  async #poll() {
    if (!document.hidden) {
      if (this.isAdmin === null) await this.findRights();
      await this.refresh();
    }
    clearTimeout(this.#timer);
    if (this.#watchers) this.#timer = setTimeout(() => this.#poll(), EVERY);
  }

  async #scrape() {
    if (this.noMetrics) return;
    try {
      const response = await call("metrics", { admin: true });
      const at = Date.now() / 1000;
      this.metrics = new Metrics(await response.text());
      if (this.#before && at - this.#before.at < 60) this.#note(at);
      this.#before = { at, metrics: this.metrics };
    } catch (error) {
      if (error.status === 404) this.noMetrics = "GENAI_METRICS is off: there are no charts.";
      else if (!(error instanceof Unreachable)) this.problem ||= error.message;
    }
  }

  #note(at) {
    const interval = new Interval(this.#before.metrics, this.metrics, at - this.#before.at);
    const queries = interval.more("prefix_cache_queries_total");
    const inMs = (seconds) => (seconds === null ? null : seconds * 1000);
    const point = {
      times: at,
      output: interval.rate("generation_tokens"),
      prompt: interval.rate("prompt_tokens"),
      ttft: inMs(interval.mean("time_to_first_token_seconds")),
      gap: inMs(interval.mean("inter_token_latency_seconds")),
      gap95: inMs(interval.quantile("inter_token_latency_seconds", 0.95)),
      running: this.metrics.sum("num_requests_running"),
      waiting: this.metrics.sum("num_requests_waiting"),
      hits: queries ? 100 * interval.more("prefix_cache_hits_total") / queries : null,
    };
    for (const name of SERIES) this.series[name] = [...this.series[name], point[name]].slice(-MOST);
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
