// Named settings to start a chat from, kept in this browser.
import { isSettings } from "./chat_settings.js";
import { Emitter } from "./emitter.js";

const KEY = "setting-presets";
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
    const text = (each) => JSON.stringify(Object.entries(each).sort());
    return this.all.find((preset) => text(preset.settings) === text(settings));
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

function read(key, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(key)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

export const presets = new Presets();
