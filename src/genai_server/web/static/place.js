// Where the reader is: the part of the address behind "#", such as #chat/ID or #monitor/profiles?slow_token_ratio=3.
import { Emitter } from "./emitter.js";

class Place extends Emitter {
  constructor() {
    super();
    addEventListener("hashchange", () => this.changed());
  }

  get now() {
    const [path, query = ""] = location.hash.slice(1).split("?");
    const [view = "", rest = ""] = path.split("/");
    // Its former name may be in a bookmark.
    const isMonitor = view === "monitor" || view === "watch";
    return { view: isMonitor ? "monitor" : "chat", rest, query: Object.fromEntries(new URLSearchParams(query)) };
  }
}

export const place = new Place();

export function go(view, rest = "", query = {}) {
  const more = new URLSearchParams(query).toString();
  location.hash = [view, rest].filter(Boolean).join("/") + (more && `?${more}`);
}
