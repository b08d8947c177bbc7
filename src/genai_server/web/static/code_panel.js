// The next request as a program would send it.
import { isSound } from "./attachments.js";
import { pathTo } from "./chat_tree.js";
import { requestHeaders } from "./chat_settings.js";
import { requestAfter } from "./chat_actions.js";
import { html } from "./html.js";
import { keys } from "./keys.js";
import { CopyButton } from "./parts.js";

export function CodePanel({ chat, turn }) {
  let body;
  const headers = requestHeaders(chat.settings);
  try {
    body = requestAfter(chat, turn);
  } catch (error) {
    return html`<div class="panel-body"><p class="error">${error.message}</p></div>`;
  }
  if (!body.messages.length) body.messages = [{ role: "user", content: "Hello!" }];
  const root = new URL(".", location.href).href;
  const files = filesOf(pathTo(chat, turn));
  return html`<div class="panel-body">
    <p class="soft">The request with this conversation and these settings. A key is read from GENAI_API_KEY.
      ${files.size > 0 && `${[...files.values()].some(isSound) ? "Images and recordings" : "Images"} are read from files in the current folder.`}</p>
    <${Sample} name="curl" text=${curl(root, body, files, headers)} />
    <${Sample} name="Python" text=${python(root, body, files, headers)} /></div>`;
}

function Sample({ name, text }) {
  return html`<section class="code" aria-label=${name}><div class="code-head"><span>${name}</span>
    <${CopyButton} text=${() => text} /></div><pre tabindex="0"><code>${text}</code></pre></section>`;
}

// The files of the images and recordings in these turns, which programs read instead of repeating them: {name, type, url}, by
// what the request has of them. That is a data URL for images, and what follows its head for recordings.
function filesOf(turns) {
  const files = new Map();
  const taken = new Set();
  for (const { name, url } of turns.flatMap(({ attachments = [] }) => attachments)) {
    const sent = url && isSound({ url }) ? url.slice(url.indexOf(",") + 1) : url;
    if (!sent || files.has(sent)) continue;
    const free = taken.has(name) ? `${files.size + 1}-${name}` : name;
    taken.add(free);
    files.set(sent, { name: free, type: url.slice("data:".length, url.indexOf(";")), url });
  }
  return files;
}

// For a POSIX shell, in which only the quote itself ends a quoted text. A body with files is too long for an argument.
export function curl(root, body, files = new Map(), headers = {}) {
  const key = keys.any ? ' \\\n  -H "authorization: Bearer $GENAI_API_KEY"' : "";
  const more = Object.entries(headers).map(([name, value]) => ` \\\n  -H ${shellText(`${name}: ${value}`)}`).join("");
  const call = `curl -s ${root}v1/chat/completions -H 'content-type: application/json'${key}${more} -d`;
  // Unlike any text of the conversation, so that only files become commands.
  const mark = `file ${Math.random()} `;
  const found = [...files.keys()];
  const marked = JSON.stringify(body, (_, value) => (files.has(value) ? `${mark}${found.indexOf(value)}.` : value), 2);
  const quoted = found.reduce(
    (text, url, place) => text.replaceAll(`${mark}${place}.`, () => inShell(files.get(url))), shellText(marked));
  return files.size ? `printf %s ${quoted} |\n  ${call} @-` : `${call} ${quoted}`;
}

const shellText = (text) => `'${text.replaceAll("'", "'\\''")}'`;

// A file within a quoted text.
function inShell({ name, type, url }) {
  return `${isSound({ url }) ? "" : `data:${type};base64,`}'"$(base64 <${shellText(name)} | tr -d '\\n')"'`;
}

// JSON differs from Python only in these three words; strings have the same escapes.
export function python(root, body, files = new Map(), headers = {}) {
  const key = keys.any ? 'os.environ["GENAI_API_KEY"]' : '"unused"';
  const known = ["model", "messages", "temperature", "top_p", "max_tokens", "seed", "stop", "frequency_penalty",
    "presence_penalty", "response_format", "tools", "logprobs", "top_logprobs", "reasoning_effort"];
  const own = Object.entries(body).filter(([name]) => known.includes(name));
  const more = Object.entries(body).filter(([name, value]) => !known.includes(name) && value !== undefined);
  const fields = own.filter(([, value]) => value !== undefined).map(([name, value]) => `    ${name}=${literal(value, files)},\n`);
  if (more.length) fields.push(`    extra_body=${literal(Object.fromEntries(more), files)},\n`);
  if (Object.keys(headers).length) fields.push(`    extra_headers=${literal(headers, files)},\n`);
  const modules = `${files.size ? "import base64\n" : ""}${keys.any ? "import os\n" : ""}`;
  return `${modules}${modules && "\n"}from openai import OpenAI\n\n${functionsFor([...files.values()])}`
    + `client = OpenAI(base_url=${JSON.stringify(`${root}v1`)}, api_key=${key})\n`
    + `completion = client.chat.completions.create(\n${fields.join("")})\nprint(completion.choices[0].message.content)\n`;
}

// The functions that read the files.
function functionsFor(files) {
  return (files.some((each) => !isSound(each)) ? IMAGE_FUNCTION : "") + (files.some(isSound) ? SOUND_FUNCTION : "");
}

const SOUND_FUNCTION = `def recording(path):
    with open(path, "rb") as file:
        return base64.b64encode(file.read()).decode()

`;
const IMAGE_FUNCTION = `def image(path, media_type):
    with open(path, "rb") as file:
        return f"data:{media_type};base64,{base64.b64encode(file.read()).decode()}"

`;

function literal(value, files) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map((each) => literal(each, files)).join(", ")}]`;
  if (typeof value === "object") {
    return `{${Object.entries(value).map(([name, inner]) => `${JSON.stringify(name)}: ${literal(inner, files)}`).join(", ")}}`;
  }
  const file = files.get(value);
  if (file) return isSound(file) ? `recording(${JSON.stringify(file.name)})` : `image(${JSON.stringify(file.name)}, ${JSON.stringify(file.type)})`;
  return JSON.stringify(value);
}
