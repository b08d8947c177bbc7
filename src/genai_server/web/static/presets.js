// Named settings to start a chat from, and those with which new chats begin, kept in this browser.
import { isSettings } from "./chat_settings.js";
import { Emitter } from "./emitter.js";

const KEY = "setting-presets";
const DEFAULTS_KEY = "new-chat-settings";
// Earlier versions of the page had one set of options for all chats.
const OPTIONS_KEY = "request-options";
const BUILT_IN = [
  { name: "Precise", settings: { temperature: "0" } },
  { name: "Creative", settings: { temperature: "1", top_p: "0.95" } },
];

class Presets extends Emitter {
  own = read(KEY, []).filter(({ name, settings }) => typeof name === "string" && isSettings(settings));

  constructor() {
    super();
    const options = read(OPTIONS_KEY, {});
    if (isSettings(options) && Object.keys(options).length) this.save("Earlier options", options);
    localStorage.removeItem(OPTIONS_KEY);
  }

  get all() {
    return [...BUILT_IN, ...this.own];
  }

  // The preset that has exactly these settings.
  like(settings) {
    return this.all.find((preset) => areEqual(preset.settings, settings));
  }

  // The settings with which new chats begin. Another tab may change them.
  get defaults() {
    const found = read(DEFAULTS_KEY, {});
    return isSettings(found) ? found : {};
  }

  set defaults(settings) {
    if (Object.keys(settings).length) localStorage.setItem(DEFAULTS_KEY, JSON.stringify(settings));
    else localStorage.removeItem(DEFAULTS_KEY);
    this.changed();
  }

  // Keep settings by this name, in place of the reader's own ones of that name.
  save(name, settings) {
    this.#keep([...this.own.filter((preset) => preset.name !== name), { name, settings }]);
  }

  remove(preset) {
    this.#keep(this.own.filter((other) => other !== preset));
  }

  #keep(own) {
    this.own = own;
    localStorage.setItem(KEY, JSON.stringify(own));
    this.changed();
  }
}

export function areEqual(one, other) {
  const text = (each) => JSON.stringify(Object.entries(each).sort());
  return text(one) === text(other);
}

function read(key, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(key)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

export const presets = new Presets();
