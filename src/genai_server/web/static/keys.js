// The caller's keys. They live as long as the tab, or in this browser if the reader wants that, and go into a header only.
import { Emitter } from "./emitter.js";

const NAMES = { api: "genai-api-key", admin: "genai-admin-key" };

class Keys extends Emitter {
  // What the reader is asked for: {kind, reason, settle}; null while nothing is asked.
  question = null;

  get(kind) {
    return sessionStorage.getItem(NAMES[kind]) ?? localStorage.getItem(NAMES[kind]) ?? "";
  }

  // Keep a key, or forget it if it is empty.
  set(kind, key, isRemembered = false) {
    for (const storage of [sessionStorage, localStorage]) storage.removeItem(NAMES[kind]);
    if (key) (isRemembered ? localStorage : sessionStorage).setItem(NAMES[kind], key);
    this.changed();
  }

  forget() {
    for (const kind of Object.keys(NAMES)) this.set(kind, "");
  }

  get any() {
    return Boolean(this.get("api") || this.get("admin"));
  }

  // The header for a call: admin calls use the admin key if there is one, and all others the API key if there is one.
  headers(admin) {
    const key = admin ? this.get("admin") || this.get("api") : this.get("api") || this.get("admin");
    return key ? { authorization: `Bearer ${key}` } : {};
  }

  // Ask the reader; true once there is a new key. Calls that fail together ask once.
  ask(kind, reason) {
    if (!this.question) {
      let settle;
      const answered = new Promise((resolve) => { settle = resolve; });
      this.question = { kind, reason, settle, answered };
      this.changed();
    }
    return this.question.answered;
  }

  answer(key, isRemembered) {
    const { kind, settle } = this.question;
    this.question = null;
    if (key) this.set(kind, key, isRemembered);
    else this.changed();
    settle(Boolean(key));
  }
}

export const keys = new Keys();
