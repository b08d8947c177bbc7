// Formulas in Markdown: how they are found, and how KaTeX sets them.
import { katex } from "./libraries.js";

const CLOSERS = { "\\(": "\\)", "\\[": "\\]", $$: "$$", $: "$" };
// Formulas that are kept as they were set: a text that grows is drawn again and again.
const MAX_KEPT = 500;
const kept = new Map();
// Characters up to which a formula is set: KaTeX takes a time and a depth that grow with them.
const MAX_LENGTH = 5000;
// Formulas that are set before the next frame, so that the page answers in between.
const AT_ONCE = 200;

// A plug-in of markdown-it for \(…\), \[…\], $$…$$ and $…$: Markdown would take their backslashes, stars and underscores
// for its own.
export function formulas(markdown) {
  markdown.inline.ruler.before("escape", "formula", inline);
  markdown.block.ruler.before("fence", "formula", block, { alt: ["paragraph", "blockquote", "list"] });
  markdown.renderer.rules.formula = (tokens, place) => {
    const { content, markup } = tokens[place];
    const text = markdown.utils.escapeHtml(`${markup}${content}${CLOSERS[markup]}`);
    return markup === "$" || markup === "\\(" ? `<span class="formula">${text}</span>` : `<span class="formula display">${text}</span>`;
  };
}

// The closers in the text of a parser's state, by what they are. They are searched once for each text: a search from each
// opener would take a time that grows with the square of the text's length.
const found = new WeakMap();
const REST_IS_BLANK = /[^\S\n]*(?:\n|$)/y;

function closersOf(state, closer) {
  if (!found.has(state)) found.set(state, {});
  return (found.get(state)[closer] ??= closersIn(state.src, closer));
}

// The places of a closer in order, and those of them where nothing follows on the line.
function closersIn(text, closer) {
  const places = [], last = new Set();
  for (let place = text.indexOf(closer); place >= 0; place = text.indexOf(closer, place + 1)) {
    places.push(place);
    REST_IS_BLANK.lastIndex = place + closer.length;
    if (REST_IS_BLANK.test(text)) last.add(place);
  }
  return { places, last };
}

// The first of the places at or behind another one; undefined without one.
function firstFrom(places, begin) {
  return places[firstIndex(places.length, (index) => places[index] >= begin)];
}

// The first index with a property that all later ones have; the length without one.
function firstIndex(length, has) {
  let low = 0, high = length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (has(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}

const openerOf = (text, place) => Object.keys(CLOSERS).find((each) => text.startsWith(each, place));

function inline(state, silent) {
  const opener = openerOf(state.src, state.pos);
  if (!opener) return false;
  const begin = state.pos + opener.length;
  const end = firstFrom(closersOf(state, CLOSERS[opener]).places, begin);
  if (end === undefined || end === begin || end >= state.posMax) return false;
  const text = state.src.slice(begin, end), after = state.src[end + 1] ?? "";
  // "$5 and $6" are prices.
  if (opener === "$" && (/^\s|\s$/.test(text) || /\d/.test(after))) return false;
  if (!silent) add(state, opener, text);
  state.pos = end + CLOSERS[opener].length;
  return true;
}

// A formula on lines of its own, which may look like a list or a heading.
function block(state, first, last, silent) {
  const begin = state.bMarks[first] + state.tShift[first];
  const opener = openerOf(state.src, begin);
  if (opener !== "$$" && opener !== "\\[") return false;
  const { places, last: atEnds } = closersOf(state, CLOSERS[opener]);
  const end = firstFrom(places, begin + opener.length);
  if (!atEnds.has(end)) return false;
  const line = first + firstIndex(last - first, (lines) => state.eMarks[first + lines] > end);
  if (line === last) return false;
  if (silent) return true;
  state.push("paragraph_open", "p", 1);
  add(state, opener, state.src.slice(begin + opener.length, end));
  state.push("paragraph_close", "p", -1);
  state.line = line + 1;
  return true;
}

function add(state, opener, text) {
  const token = state.push("formula", "", 0);
  token.content = text;
  token.markup = opener;
}

// Set the formulas within an element. Before KaTeX is there, and if it cannot read one, they stay as they were written.
export function typeset(element) {
  const found = [...element.querySelectorAll(".formula:not([data-set])")];
  if (found.length && !katex.now) katex.load();
  if (!katex.now) return;
  for (const each of found.slice(0, AT_ONCE)) set(each);
  if (found.length > AT_ONCE) requestAnimationFrame(() => typeset(element));
}

function set(element) {
  const written = element.textContent;
  element.dataset.set = "";
  if (!kept.has(written)) {
    if (kept.size >= MAX_KEPT) kept.clear();
    kept.set(written, drawn(written, element.classList.contains("display")));
  }
  const formula = kept.get(written);
  if (!formula) return;
  element.replaceChildren(formula.cloneNode(true));
  element.setAttribute("role", "math");
  element.setAttribute("aria-label", written);
}

// A formula as a fragment; null if it is too long, or KaTeX cannot read it. Its MathML would have inline styles, which the page's policy forbids.
function drawn(written, displayMode) {
  const opener = openerOf(written, 0);
  const text = written.slice(opener.length, -CLOSERS[opener].length);
  const fragment = document.createElement("span");
  if (text.length > MAX_LENGTH) return null;
  try {
    katex.now.render(text, fragment, { displayMode, output: "html", throwOnError: true, strict: "ignore", maxSize: 20, trust: false });
    return fragment;
  } catch {
    return null;
  }
}
