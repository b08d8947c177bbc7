// Models that the server fetches from the hub: each download and how far it has come. It continues while other views are
// shown, and ends with the tab; the next one continues where it ended.
import { call } from "./api.js";
import { connection } from "./connection.js";
import { Emitter } from "./emitter.js";
import { models } from "./models.js";

class Downloads extends Emitter {
  // {name, total, completed, began, speed, step, error, isDone}, by name.
  all = new Map();
  #controllers = new Map();

  // Fetch a model by the name that /api/pull takes; `total` is its size in bytes.
  async begin(name, total) {
    const controller = new AbortController();
    this.#controllers.set(name, controller);
    const download = { name, total, completed: 0, began: performance.now(), speed: null, step: "", error: "", isDone: false };
    this.all.set(name, download);
    this.changed();
    try {
      const response = await call("api/pull", { method: "POST", body: { model: name }, admin: true, signal: controller.signal });
      for await (const line of lines(response, controller.signal)) this.#add(download, line);
      if (!download.isDone) download.error ||= "The download ended early.";
    } catch (error) {
      download.error = controller.signal.aborted ? "Stopped. The next download continues here." : error.message;
    }
    this.#controllers.delete(name);
    this.changed();
    if (download.isDone) await models.follow();
  }

  stop(name) {
    this.#controllers.get(name)?.abort();
  }

  isRunning(name) {
    return this.#controllers.has(name);
  }

  forget(name) {
    this.all.delete(name);
    this.changed();
  }

  #add(download, { status, digest, completed = 0, error }) {
    if (error) download.error = error;
    else if (status === "success") Object.assign(download, { isDone: true, completed: download.total });
    else if (digest) this.#count(download, digest, completed);
    download.step = status ?? download.step;
    this.changed();
  }

  // Add the bytes of a file. What an earlier download has left is no part of the speed.
  #count(download, digest, completed) {
    download.files ??= new Map();
    download.first ??= completed;
    download.files.set(digest, completed);
    download.completed = [...download.files.values()].reduce((all, bytes) => all + bytes, 0);
    const seconds = (performance.now() - download.began) / 1000;
    if (seconds > 1) download.speed = (download.completed - download.first) / seconds;
  }
}

export const downloads = new Downloads();

// The objects of a response of lines of JSON.
async function* lines(response, signal) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value = "" } = await reader.read().catch((error) => { throw connection.failure(error, signal); });
    const found = (rest + value).split("\n");
    rest = done ? "" : found.pop();
    for (const line of found) if (line.trim()) yield JSON.parse(line);
    if (done) return;
  }
}
