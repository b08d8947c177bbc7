// A chat as Markdown, to read it elsewhere.
import { fenced } from "./attachments.js";
import { path } from "./chat_tree.js";

// The shown conversation. Images and recordings are named only.
export function asMarkdown(chat) {
  const system = chat.settings.system?.trim();
  const parts = [`# ${chat.title || "Chat"}`, ...(system ? ["## System prompt", system] : []), ...path(chat).flatMap(partsOf)];
  return `${parts.join("\n\n")}\n`;
}

function partsOf(turn) {
  if (turn.role === "tool") return [`## Result of ${turn.name}`, fenced(turn.content)];
  if (turn.role === "user") return ["## You", ...(turn.attachments ?? []).map(attached), turn.content].filter((part) => part.trim());
  const runs = (turn.runs ?? []).flatMap(({ server, name, arguments: text, output }) => [
    `Tool \`${server}: ${name}\`:`, fenced(text), ...(output === undefined ? [] : [fenced(output)]),
  ]);
  const calls = turn.calls.flatMap(({ name, text }) => [`Calls \`${name}\`:`, fenced(text)]);
  return [`## Answer${turn.model ? ` of ${turn.model}` : ""}`, ...runs, turn.content, ...calls,
    turn.error ? `*${turn.error}*` : ""].filter((part) => part.trim());
}

const attached = ({ name, text }) => (text === undefined ? `Attached: ${name}` : `${name}:\n\n${fenced(text)}`);
