// Libraries that are loaded once something needs them.
import { Emitter } from "./emitter.js";

// A script or a style sheet of the page, once it is there.
function loaded(element) {
  return new Promise((resolve, reject) => {
    element.onload = () => resolve();
    element.onerror = () => reject(new Error(`${element.src ?? element.href} cannot be loaded`));
    document.head.append(element);
  });
}

const script = (src) => loaded(Object.assign(document.createElement("script"), { src }));
const style = (href) => loaded(Object.assign(document.createElement("link"), { rel: "stylesheet", href }));

class Library extends Emitter {
  // The library; null until it is loaded.
  now = null;
  #fetch;
  #loading = null;

  constructor(fetch) {
    super();
    this.#fetch = fetch;
  }

  // Begin to load. A library that fails to load is tried again with the next need.
  load() {
    this.#loading ??= this.#fetch().then((library) => {
      this.now = library;
      this.changed();
      return library;
    }).catch(() => { this.#loading = null; });
    return this.#loading;
  }
}

export const highlighter = new Library(async () => (await import("./vendor/highlight.js")).default);
export const katex = new Library(async () => {
  await Promise.all([script("ui/vendor/katex.js"), style("ui/vendor/katex.css")]);
  return window.katex;
});
export const pdf = new Library(async () => {
  const library = await import("./vendor/pdf.js");
  library.GlobalWorkerOptions.workerSrc = new URL("vendor/pdf.worker.js", import.meta.url).href;
  return library;
});
export const uPlot = new Library(async () => {
  await Promise.all([script("ui/vendor/uplot.js"), style("ui/vendor/uplot.css")]);
  return window.uPlot;
});
