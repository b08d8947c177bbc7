// The colours: the system's, or those that the reader chose. Loaded before anything is shown.
"use strict";

const THEMES = ["auto", "light", "dark"];

window.theme = {
  get name() {
    const chosen = localStorage.getItem("theme");
    return THEMES.includes(chosen) ? chosen : "auto";
  },
  // Whether the colours are dark now, also where the system chooses them.
  get isDark() {
    return this.name === "dark" || (this.name === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  },
  next() {
    localStorage.setItem("theme", THEMES[(THEMES.indexOf(this.name) + 1) % THEMES.length]);
    this.apply();
  },
  apply() {
    document.documentElement.dataset.theme = this.name;
    window.dispatchEvent(new Event("themechange"));
  },
};
window.theme.apply();
