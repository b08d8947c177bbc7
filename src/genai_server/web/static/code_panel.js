// The next request as a program would send it.
import { requestAfter } from "./conversation.js";
import { html } from "./html.js";
import { keys } from "./keys.js";
import { CopyButton } from "./parts.js";

export function CodePanel({ chat, turn }) {
  let body;
  try {
    body = requestAfter(chat, turn);
  } catch (error) {
    return html`<div class="panel-body"><p class="error">${error.message}</p></div>`;
  }
  if (!body.messages.length) body.messages = [{ role: "user", content: "Hello!" }];
  const root = new URL(".", location.href).href;
  return html`<div class="panel-body">
    <p class="soft">The request with this conversation and these options. A key is read from GENAI_API_KEY.</p>
    <${Sample} name="curl" text=${curl(root, body)} />
    <${Sample} name="Python" text=${python(root, body)} /></div>`;
}

function Sample({ name, text }) {
  return html`<section class="code" aria-label=${name}><div class="code-head"><span>${name}</span>
    <${CopyButton} text=${() => text} /></div><pre tabindex="0"><code>${text}</code></pre></section>`;
}

// For a POSIX shell, in which only the quote itself ends a quoted text.
export function curl(root, body) {
  const key = keys.any ? ' \\\n  -H "authorization: Bearer $GENAI_API_KEY"' : "";
  const json = JSON.stringify(body, null, 2).replaceAll("'", "'\\''");
  return `curl -s ${root}v1/chat/completions -H 'content-type: application/json'${key} -d '${json}'`;
}

// JSON differs from Python only in these three words; strings have the same escapes.
export function python(root, body) {
  const key = keys.any ? 'os.environ["GENAI_API_KEY"]' : '"unused"';
  const known = ["model", "messages", "temperature", "top_p", "max_tokens", "seed", "stop", "frequency_penalty",
    "presence_penalty", "response_format", "tools", "logprobs", "top_logprobs", "reasoning_effort"];
  const own = Object.entries(body).filter(([name]) => known.includes(name));
  const more = Object.entries(body).filter(([name, value]) => !known.includes(name) && value !== undefined);
  const fields = own.filter(([, value]) => value !== undefined).map(([name, value]) => `    ${name}=${literal(value)},\n`);
  if (more.length) fields.push(`    extra_body=${literal(Object.fromEntries(more))},\n`);
  return `${keys.any ? "import os\n\n" : ""}from openai import OpenAI\n\n`
    + `client = OpenAI(base_url=${JSON.stringify(`${root}v1`)}, api_key=${key})\n`
    + `completion = client.chat.completions.create(\n${fields.join("")})\nprint(completion.choices[0].message.content)\n`;
}

function literal(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value === "object") {
    return `{${Object.entries(value).map(([name, inner]) => `${JSON.stringify(name)}: ${literal(inner)}`).join(", ")}}`;
  }
  return JSON.stringify(value);
}
