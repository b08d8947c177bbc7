// Markdown as HTML. HTML in the text stays text, no image is fetched, and nothing has an inline style.
import { formulas } from "./formulas.js";
import { highlighter } from "./libraries.js";
import MarkdownIt from "./vendor/markdown-it.js";

// Longer code stays plain: it would be coloured again with each of its tokens.
const MAX_COLORED = 50_000;

const markdown = new MarkdownIt({ html: false, linkify: true, breaks: false }).use(formulas).use(tasks);
// An image would tell another host what the conversation is about.
markdown.disable("image");
markdown.renderer.rules.fence = (tokens, place) => codeBlock(tokens[place].content, tokens[place].info.trim());
markdown.renderer.rules.code_block = (tokens, place) => codeBlock(tokens[place].content, "");
markdown.renderer.rules.table_open = () => '<div class="table" tabindex="0" role="region" aria-label="Table"><table>';
markdown.renderer.rules.table_close = () => "</table></div>";
markdown.renderer.rules.th_open = markdown.renderer.rules.td_open = (tokens, place, settings, env, self) => {
  const alignment = /^text-align:(\w+)$/.exec(tokens[place].attrGet("style") ?? "")?.[1];
  tokens[place].attrs = alignment ? [["class", alignment]] : null;
  return self.renderToken(tokens, place, settings);
};
markdown.renderer.rules.link_open = (tokens, place, settings, env, self) => {
  tokens[place].attrSet("target", "_blank");
  tokens[place].attrSet("rel", "noopener noreferrer");
  return self.renderToken(tokens, place, settings);
};

// A plug-in of markdown-it for "- [x] done".
function tasks(markdown) {
  markdown.core.ruler.after("inline", "tasks", ({ tokens, Token }) => {
    tokens.forEach((token, place) => {
      const [text] = token.children ?? [];
      const found = tokens[place - 2]?.type === "list_item_open" && text?.type === "text" && /^\[([ xX])\]\s/.exec(text.content);
      if (!found) return;
      text.content = text.content.slice(found[0].length);
      const box = new Token("task", "", 0);
      box.info = found[1].trim();
      token.children.unshift(box);
      tokens[place - 2].attrJoin("class", "task");
    });
  });
  markdown.renderer.rules.task = (tokens, place) => (tokens[place].info
    ? '<input type="checkbox" disabled checked aria-label="done"> ' : '<input type="checkbox" disabled aria-label="to do"> ');
}

function codeBlock(text, info) {
  const { escapeHtml } = markdown.utils;
  const language = info.split(/\s/)[0];
  return `<div class="code"><div class="code-head"><span>${escapeHtml(language)}</span>`
    + '<button type="button" class="copy-code">Copy</button></div>'
    + `<pre tabindex="0"><code>${coloured(text, language) ?? escapeHtml(text)}</code></pre></div>`;
}

// The HTML of code with colours; null without a language, and until the library is there.
function coloured(text, language) {
  if (!language || text.length > MAX_COLORED) return null;
  if (!highlighter.now) {
    highlighter.load();
    return null;
  }
  if (!highlighter.now.getLanguage(language)) return null;
  return highlighter.now.highlight(text, { language, ignoreIllegals: true }).value;
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
