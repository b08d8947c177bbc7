// The list of chats: search, rename, remove, export and import.
import { asMarkdown } from "./chat_markdown.js";
import { chats } from "./chats.js";
import { confirmation } from "./confirmation.js";
import { useChanges } from "./emitter.js";
import { period } from "./figures.js";
import { html, useRef, useState } from "./html.js";
import { download, focused, Menu } from "./parts.js";

export function ChatList({ current, search, onOpen, onNew }) {
  useChanges(chats);
  const [text, setText] = useState("");
  const [problem, setProblem] = useState("");
  const file = useRef();
  const found = chats.found(text);
  const importFile = async (event) => {
    const [chosen] = event.target.files;
    event.target.value = "";
    if (!chosen) return;
    try {
      await chats.imported(await chosen.text());
      setProblem("");
    } catch (error) {
      setProblem(`Nothing was imported: ${error.message}`);
    }
  };
  const exportFile = async (name, exported) => {
    try {
      download(name, await chats.exported(exported));
      setProblem("");
    } catch (error) {
      setProblem(`Nothing was exported: ${error.message}`);
    }
  };
  return html`<nav class="chat-list" aria-label="Chats">
    <button type="button" class="primary" onClick=${onNew}>New chat</button>
    <input type="search" placeholder="Search chats" ref=${search} aria-label="Search chats" value=${text}
      onInput=${(event) => setText(event.target.value)} />
    <div class="periods">${[...Map.groupBy(found, (chat) => period(chat.updated))].map(([name, chats]) => html`<section key=${name}
      aria-label=${name}><h3>${name}</h3><ul>${chats.map((chat) => html`<${Entry} key=${chat.id} chat=${chat}
        isCurrent=${chat.id === current} onOpen=${onOpen} onExport=${() => exportFile("chat.json", [chat])}
        onMarkdown=${() => download(fileName(chat), asMarkdown(chat), "text/markdown")} />`)}</ul></section>`)}
    </div>
    ${!found.length && html`<p class="soft">${text ? "No chat has this text." : "No chats yet."}</p>`}
    ${(problem || chats.problem) && html`<p class="error" role="alert">${problem || chats.problem}</p>`}
    <div class="list-foot">
      <button type="button" class="quiet" disabled=${!chats.found().length}
        onClick=${() => exportFile("chats.json")}>Export all</button>
      <button type="button" class="quiet" onClick=${() => file.current.click()}>Import</button>
      <input type="file" hidden accept="application/json,.json" ref=${file} onChange=${importFile} aria-label="Import" />
    </div>
  </nav>`;
}

// The title without what file systems refuse.
const fileName = ({ title }) => `${title.replace(/[^\p{L}\p{N}_-]+/gu, " ").trim().slice(0, 60) || "chat"}.md`;

function Entry({ chat, isCurrent, onOpen, onExport, onMarkdown }) {
  const [isNamed, setNamed] = useState(false);
  const title = chat.title || "New chat";
  if (isNamed) return html`<${NameForm} chat=${chat} onDone=${() => setNamed(false)} />`;
  const remove = async () => {
    if (await confirmation.ask({ title: "Delete this chat?", text: `“${title}” cannot be brought back.`, action: "Delete" })) chats.remove(chat);
  };
  return html`<li class=${isCurrent ? "current" : ""}>
    <button type="button" class="open" aria-current=${isCurrent ? "page" : undefined} title=${title} onClick=${() => onOpen(chat)}>
      <span>${title}</span></button>
    <${Menu} label=${`More about ${title}`}>
      <button type="button" onClick=${() => setNamed(true)}>Rename</button>
      <button type="button" onClick=${onExport}>Export</button>
      <button type="button" onClick=${onMarkdown}>Export as Markdown</button>
      <button type="button" class="danger" onClick=${remove}>Delete</button><//>
  </li>`;
}

function NameForm({ chat, onDone }) {
  const [name, setName] = useState(chat.title);
  const save = (event) => {
    event.preventDefault();
    chats.save(chat, { title: name.trim() || chat.title });
    onDone();
  };
  const onKeyDown = (event) => {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    onDone();
  };
  return html`<li><form class="rename" onSubmit=${save}>
    <input aria-label="Name of the chat" value=${name} ref=${focused} onInput=${(event) => setName(event.target.value)}
      onKeyDown=${onKeyDown} />
    <button class="quiet">Save</button></form></li>`;
}
