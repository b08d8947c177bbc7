// The chat view: the list of chats, the conversation, and a panel next to it.
import { ROOT, newChat, path } from "./chat_tree.js";
import { PROBABILITIES, withSetting } from "./chat_settings.js";
import { chats } from "./chats.js";
import { ChatList } from "./chat_list.js";
import { CodePanel } from "./code_panel.js";
import { Composer } from "./composer.js";
import { canSend, regenerate, running, send } from "./chat_actions.js";
import { drafts } from "./drafts.js";
import { useChanges } from "./emitter.js";
import { share, whole } from "./figures.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "./html.js";
import { Icon, IconButton } from "./icons.js";
import { ModelPicker } from "./model_picker.js";
import { models } from "./models.js";
import { go } from "./place.js";
import { SettingsPanel } from "./settings_panel.js";
import { TokenPanel } from "./token_panel.js";
import { TurnView } from "./turn_view.js";
import { Welcome } from "./welcome.js";

// Pixels from the end within which new text is followed.
const NEAR = 80;

export function ChatView({ chatId }) {
  useChanges(chats, running, models, drafts);
  const [isListed, setListed] = useState(false);
  // The panel next to the conversation: {name: "settings" | "code" | "look", turn}; null for nothing.
  const [panel, setPanel] = useState(null);
  // The turn that is being edited.
  const [editedId, setEdited] = useState(null);
  const search = useRef();
  const chat = chats.get(chatId);
  const isBusy = chat ? running.has(chat) : false;
  const isElsewhere = chat ? chats.isGrowingElsewhere(chat) : false;
  const isOpen = !chat || chats.isOpen(chat);
  // Asked again by each change, as changes may come faster than they are drawn.
  const settingsNow = () => chat?.settings ?? drafts.of("").settings;
  const settings = settingsNow();
  const setSettings = (changed) => (chat ? chats.save(chat, { settings: changed }) : drafts.change("", { settings: changed }));
  const turns = chat && isOpen ? path(chat) : [];
  const numSet = Object.keys(settings).length;
  const toggle = (name) => setPanel(panel?.name === name ? null : { name });
  const open = (other) => {
    setListed(false);
    setPanel(null);
    setEdited(null);
    go("chat", other?.id);
  };
  const onSend = (text, attachments) => {
    if (isElsewhere) running.refuse("Another tab is receiving an answer in this chat.");
    if (isElsewhere || !isOpen || !canSend(settingsNow(), attachments)) return false;
    const to = chat ?? chats.add(newChat(settingsNow()));
    send(to, text, attachments);
    if (!chat) go("chat", to.id);
    return true;
  };
  useEffect(() => {
    document.title = chat?.title ? `${chat.title} – genai-server` : "genai-server";
    return () => { document.title = "genai-server"; };
  }, [chat?.title]);
  useEffect(() => {
    if (!chat) return undefined;
    chats.open(chat);
    return () => chats.close(chat);
  }, [chat]);
  useEffect(() => {
    const onKeyDown = (event) => {
      if (document.querySelector("dialog[open]")) return;
      if (event.key === "Escape") {
        if (isBusy) running.stop(chat);
        else setPanel(null);
      } else if (event.key === "k" && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        setListed(true);
        requestAnimationFrame(() => requestAnimationFrame(() => search.current?.focus()));
      } else if (event.code === "KeyN" && event.altKey) {
        event.preventDefault();
        open(null);
      }
    };
    addEventListener("keydown", onKeyDown);
    return () => removeEventListener("keydown", onKeyDown);
  }, [chat, isBusy]);
  // The focus returns to the message from a button that is gone; on a touch screen that would bring up the keyboard.
  useEffect(() => {
    if (document.activeElement === document.body && matchMedia("(hover: hover)").matches) {
      document.querySelector(".composer textarea").focus({ preventScroll: true });
    }
  }, [isBusy, editedId, turns.length, panel]);
  const editLast = () => {
    const last = isBusy ? undefined : turns.findLast(({ role }) => role === "user");
    if (last) setEdited(last.id);
    return Boolean(last);
  };
  const askAgain = () => {
    regenerate(chat, panel.turn, PROBABILITIES);
    setPanel(null);
  };
  const profile = (token) => go("monitor", "profiles", { slow_token_ratio: Math.max(1.5, Math.min(3, token.ratio * 0.7)).toFixed(1) });
  return html`<div class=${`chat-view${isListed ? " listed" : ""}${panel ? " with-panel" : ""}`}>
    ${isListed && html`<button type="button" class="scrim" aria-label="Close the list of chats" onClick=${() => setListed(false)}></button>`}
    <aside class="side"><${ChatList} current=${chatId} search=${search} onOpen=${open} onNew=${() => open(null)} /></aside>
    <section class="conversation" aria-label="Conversation">
      ${turns.length > 0 && html`<h1 class="unseen">${chat.title || "Chat"}</h1>`}
      <div class="bar">
        <${IconButton} icon="chats" label="Chats" class="only-narrow" aria-expanded=${isListed} onClick=${() => setListed(!isListed)} />
        <${ModelPicker} />
        <span class="stretch"></span>
        <${ContextGauge} turns=${turns} />
        <${BarButton} icon="settings" words="Settings" isOpen=${panel?.name === "settings"} onClick=${() => toggle("settings")}
          badge=${numSet ? `${numSet} set` : ""} />
        <${BarButton} icon="code" words="Code" isOpen=${panel?.name === "code"} onClick=${() => toggle("code")} />
      </div>
      <${Turns} key=${chatId} chat=${chat} turns=${turns} isOpen=${isOpen} isBusy=${isBusy || isElsewhere}
        editedId=${editedId} onEdit=${setEdited} system=${settings.system} onSystem=${() => setPanel({ name: "settings" })}
        onAsk=${(text) => onSend(text, [])} onInspect=${(turn) => setPanel({ name: "look", turn })} />
      <${Composer} chatId=${chat?.id ?? ""} isBusy=${isBusy} problem=${running.problem} onSend=${onSend} onEditLast=${editLast}
        onStop=${() => running.stop(chat)} />
      <p class="unseen" role="status">${isBusy ? "The answer is being written" : turns.length ? endInWords(turns.at(-1)) : ""}</p>
    </section>
    ${panel && html`<aside class="panel" aria-label=${TITLES[panel.name]}>
      <div class="panel-head"><h2>${TITLES[panel.name]}</h2>
        <button type="button" class="quiet" aria-label="Close" onClick=${() => setPanel(null)}>✕</button></div>
      ${panel.name === "settings" && html`<${SettingsPanel} settings=${settings} onReplace=${setSettings}
        onSet=${(name, value) => setSettings(withSetting(settingsNow(), name, value))} />`}
      ${panel.name === "code" && html`<${CodePanel} chat=${chat ?? { turns: {}, settings }} turn=${chat ? lastQuestion(turns) : ROOT} />`}
      ${panel.name === "look" && html`<${TokenPanel} key=${panel.turn.id} turn=${panel.turn} onAskAgain=${askAgain} onProfile=${profile} />`}
    </aside>`}
  </div>`;
}

const TITLES = { settings: "Chat settings", code: "As a program", look: "Inspect tokens" };

// What a screen reader says once an answer is written.
function endInWords({ error, finish }) {
  if (error) return "The answer failed";
  return finish === "stopped" ? "The answer was stopped" : "The answer is complete";
}

// The turn after which the shown request was sent.
function lastQuestion(turns) {
  return turns.findLast((turn) => turn.role !== "assistant")?.id ?? ROOT;
}

function BarButton({ icon, words, badge = "", isOpen, onClick }) {
  return html`<button type="button" class="quiet bar-button" aria-expanded=${isOpen} title=${words} onClick=${onClick}>
    <${Icon} name=${icon} /><span class="label">${words}</span>${badge && html` <span class="badge">${badge}</span>`}</button>`;
}

function Turns({ chat, turns, isOpen, isBusy, editedId, onEdit, system = "", onSystem, onAsk, onInspect }) {
  const list = useRef();
  const follows = useRef(true);
  const onScroll = () => {
    const { scrollHeight, scrollTop, clientHeight } = list.current;
    follows.current = scrollHeight - scrollTop - clientHeight < NEAR;
  };
  useLayoutEffect(() => { if (follows.current) list.current.scrollTop = list.current.scrollHeight; });
  useLayoutEffect(() => { follows.current = true; }, [turns.length]);
  return html`<div class="turns" ref=${list} onScroll=${onScroll} tabindex="0" role="log" aria-live="off" aria-label="Messages">
    <div class="column">
      ${system.trim() && html`<button type="button" class="chip" title=${system} onClick=${onSystem}>
        <span class="soft">System prompt</span> ${system}</button>`}
      ${isOpen && !turns.length && html`<${Welcome} onAsk=${onAsk} />`}
      ${turns.map((turn, place) => html`<${TurnView} key=${turn.id} chat=${chat} turn=${turn} isBusy=${isBusy}
        isLast=${place === turns.length - 1} isWriting=${isBusy && place === turns.length - 1}
        isEdited=${turn.id === editedId} onEdit=${onEdit} onInspect=${onInspect} />`)}
    </div></div>`;
}

// How much of the model's context the conversation takes, as of its last answer.
function ContextGauge({ turns }) {
  const most = models.chosen?.max_model_len;
  const last = turns.findLast((turn) => turn.usage);
  if (!most || !last) return null;
  const used = last.usage.total_tokens;
  return html`<span class="gauge" title=${`${whole(used)} of ${whole(most)} tokens of the context`}>
    <meter min="0" max=${most} high=${most * 0.8} value=${used} aria-label="Context"></meter>
    <span class="soft not-narrow">${whole(used)} / ${whole(most)}</span>
    <span class="soft only-narrow">${share(used / most)}</span></span>`;
}
