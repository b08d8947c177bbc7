// The page: its head, and the view that the address names.
import { ChatView } from "./chat_view.js";
import { chats } from "./chats.js";
import { connection } from "./connection.js";
import { ConfirmationDialog } from "./confirmation.js";
import { useChanges } from "./emitter.js";
import { html, render, useEffect, useRef, useState } from "./html.js";
import { KeyDialog } from "./key_dialog.js";
import { keys } from "./keys.js";
import { models } from "./models.js";
import { MonitorTabs } from "./monitor_tabs.js";
import { place } from "./place.js";
import { Shortcuts } from "./shortcuts.js";

function App() {
  useChanges(place, keys, connection);
  const { view, rest, query } = place.now;
  // The chat to which the reader comes back from the monitor.
  const lastChat = useRef("");
  if (view === "chat") lastChat.current = rest;
  const chatPlace = view === "chat" || !lastChat.current ? "#chat" : `#chat/${lastChat.current}`;
  return html`
    <a class="skip" href="#main" onClick=${toMain}>Skip to the content</a>
    <header class="head">
      <span class="name">genai-server</span>
      <nav aria-label="Views">
        <a href=${chatPlace} aria-current=${view === "chat" ? "page" : undefined}>Chat</a>
        <a href="#monitor" aria-current=${view === "monitor" ? "page" : undefined}>Monitor</a>
        <a href="docs">API</a>
      </nav>
      <span class="stretch"></span>
      ${keys.any && html`<button type="button" class="quiet" onClick=${forget}>Forget keys</button>`}
      <${Shortcuts} />
      <${ThemeButton} />
    </header>
    ${connection.isLost && html`<p class="banner" role="status">Server not reachable. Retrying …</p>`}
    <main id="main" tabindex="-1">
      ${view === "monitor" ? html`<${MonitorTabs} tab=${rest} query=${query} />` : html`<${ChatView} chatId=${rest} />`}
    </main>
    <${KeyDialog} />
    <${ConfirmationDialog} />`;
}

// The address names the view, so that a link to an element cannot stand there.
function toMain(event) {
  event.preventDefault();
  document.getElementById("main").focus();
}

function forget() {
  keys.forget();
  location.reload();
}

const THEMES = { auto: ["◐", "Auto"], light: ["☀", "Light"], dark: ["☾", "Dark"] };

function ThemeButton() {
  const [name, setName] = useState(window.theme.name);
  useEffect(() => {
    const onChange = () => setName(window.theme.name);
    addEventListener("themechange", onChange);
    return () => removeEventListener("themechange", onChange);
  }, []);
  return html`<button type="button" class="quiet" aria-label=${`Colours: ${name}`} title="Colours: the system's, light or dark"
    onClick=${() => window.theme.next()}><span aria-hidden="true">${THEMES[name][0]}</span> <span class="not-narrow">${THEMES[name][1]}</span></button>`;
}

await chats.load();
render(html`<${App} />`, document.getElementById("app"));
models.load();
connection.listen(() => { if (!connection.isLost) models.load(); });
