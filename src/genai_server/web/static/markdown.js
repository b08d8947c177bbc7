// Markdown as HTML. HTML in the text stays text, no image is fetched, and formulas stay as they are written.
import MarkdownIt from "./vendor/markdown-it.js";

const markdown = new MarkdownIt({ html: false, linkify: true, breaks: false });
// An image would tell another host what the conversation is about.
markdown.disable("image");
markdown.inline.ruler.before("escape", "formula", formula);
markdown.renderer.rules.formula = (tokens, place) =>
  `<span class="formula">${markdown.utils.escapeHtml(tokens[place].content)}</span>`;
markdown.renderer.rules.fence = (tokens, place) => codeBlock(tokens[place].content, tokens[place].info.trim());
markdown.renderer.rules.code_block = (tokens, place) => codeBlock(tokens[place].content, "");
markdown.renderer.rules.table_open = () => '<div class="table" tabindex="0" role="region" aria-label="Table"><table>';
markdown.renderer.rules.table_close = () => "</table></div>";
markdown.renderer.rules.link_open = (tokens, place, settings, env, self) => {
  tokens[place].attrSet("target", "_blank");
  tokens[place].attrSet("rel", "noopener noreferrer");
  return self.renderToken(tokens, place, settings);
};

const CLOSERS = { "\\(": "\\)", "\\[": "\\]", $$: "$$", $: "$" };

// \(…\), \[…\], $$…$$ and $…$: Markdown would take their backslashes, stars and underscores for its own.
function formula(state, silent) {
  const opener = Object.keys(CLOSERS).find((each) => state.src.startsWith(each, state.pos));
  if (!opener) return false;
  const begin = state.pos + opener.length;
  const end = state.src.indexOf(CLOSERS[opener], begin);
  if (end <= begin || end >= state.posMax) return false;
  const text = state.src.slice(begin, end), after = state.src[end + 1] ?? "";
  // "$5 and $6" are prices.
  if (opener === "$" && (/^\s|\s$/.test(text) || /\d/.test(after))) return false;
  if (!silent) state.push("formula", "", 0).content = state.src.slice(state.pos, end + CLOSERS[opener].length);
  state.pos = end + CLOSERS[opener].length;
  return true;
}

function codeBlock(text, info) {
  const escape = markdown.utils.escapeHtml;
  const language = info.split(/\s/)[0];
  return `<div class="code"><div class="code-head"><span>${escape(language)}</span>`
    + '<button type="button" class="copy-code">Copy</button></div>'
    + `<pre tabindex="0"><code>${escape(text)}</code></pre></div>`;
}

// The HTML of each block of a text. While a text grows, all blocks but the last ones stay the same.
export function blocks(text) {
  const tokens = markdown.parse(text, {});
  const found = [];
  let begin = 0, depth = 0;
  tokens.forEach((token, place) => {
    depth += token.nesting;
    if (depth === 0) {
      found.push(markdown.renderer.render(tokens.slice(begin, place + 1), markdown.options, {}));
      begin = place + 1;
    }
  });
  return found;
}
