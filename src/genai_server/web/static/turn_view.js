// One turn of a conversation, with what can be done with it.
import { AttachmentList } from "./attachment_list.js";
import { branches, choose } from "./chat.js";
import { chats } from "./chats.js";
import { rate } from "./completion.js";
import { edit, giveResults, goOnFrom, regenerate } from "./conversation.js";
import { number, time, whole } from "./figures.js";
import { html, useMemo, useRef, useState } from "./html.js";
import { blocks } from "./markdown.js";
import { copyText, CopyButton, focused } from "./parts.js";

const ENDS = {
  length: "cut at the most tokens", timeout: "its time was over", cancelled: "cancelled by an operator",
  terminated: "ended by an operator", stopped: "stopped",
};

export function TurnView(props) {
  const { turn } = props;
  if (turn.role === "user") return html`<${UserTurn} ...${props} />`;
  if (turn.role === "tool") return html`<${ToolTurn} ...${props} />`;
  return html`<${AssistantTurn} ...${props} />`;
}

function UserTurn({ chat, turn, isBusy }) {
  const [isEdited, setEdited] = useState(false);
  const [text, setText] = useState(turn.content);
  const [attached, setAttached] = useState([]);
  const begin = () => {
    setText(turn.content);
    setAttached(turn.attachments ?? []);
    setEdited(true);
  };
  const save = (event) => {
    event.preventDefault();
    setEdited(false);
    edit(chat, turn, text, attached);
  };
  return html`<article class="turn user" aria-label="You">
    ${isEdited ? html`<form class="edit" onSubmit=${save}>
        <${AttachmentList} attachments=${attached} onRemove=${setAttached} />
        <textarea aria-label="Edit your message" rows="4" value=${text} ref=${focused}
          onInput=${(event) => setText(event.target.value)}></textarea>
        <div class="actions"><button type="button" class="quiet" onClick=${() => setEdited(false)}>Cancel</button>
          <button class="primary" disabled=${(!text.trim() && !attached.length) || isBusy}>Send</button></div></form>`
      : html`<${AttachmentList} attachments=${turn.attachments} />
        ${turn.content.trim() && html`<div class="bubble">${turn.content}</div>`}`}
    <div class="turn-tools">
      <${Branches} chat=${chat} turn=${turn} isBusy=${isBusy} />
      <${CopyButton} text=${() => turn.content} />
      <button type="button" class="quiet" disabled=${isBusy} onClick=${begin}>Edit</button>
    </div>
  </article>`;
}

function ToolTurn({ turn }) {
  return html`<article class="turn tool" aria-label=${`Result of ${turn.name}`}>
    <details class="call"><summary>Result of <code>${turn.name}</code></summary><pre tabindex="0">${turn.content}</pre></details>
  </article>`;
}

function AssistantTurn({ chat, turn, isLast, isBusy, isWriting, onInspect }) {
  return html`<article class="turn assistant" aria-label="Answer" aria-busy=${isWriting}>
    ${turn.reasoning && html`<details class="reasoning"><summary>${isWriting && !turn.content ? "Reasoning …" : "Reasoning"}</summary>
      <div>${turn.reasoning}</div></details>`}
    <${Markdown} text=${turn.content} />
    ${turn.calls.map((call) => html`<${Call} key=${call.id} call=${call} />`)}
    ${isLast && !isWriting && turn.calls.length > 0 && turn.finish === "tool_calls"
      && html`<${Results} chat=${chat} turn=${turn} />`}
    ${isWriting && html`<${Progress} turn=${turn} />`}
    ${turn.ignored && html`<p class="soft">Had no effect: ${turn.ignored}</p>`}
    ${turn.error && html`<p class="error" role="alert">${turn.error}</p>`}
    <div class="turn-tools">
      <${Branches} chat=${chat} turn=${turn} isBusy=${isBusy} />
      <${CopyButton} text=${() => turn.content} />
      <button type="button" class="quiet" disabled=${isBusy} onClick=${() => regenerate(chat, turn)}>Regenerate</button>
      ${!isLast && html`<button type="button" class="quiet" disabled=${isBusy}
        onClick=${() => goOnFrom(chat, turn)}>Continue from here</button>`}
      <button type="button" class="quiet" disabled=${!turn.pieces.length} onClick=${() => onInspect(turn)}>Look into it</button>
      <${Facts} turn=${turn} />
    </div>
  </article>`;
}

function Markdown({ text }) {
  const onClick = (event) => {
    const button = event.target.closest(".copy-code");
    if (!button) return;
    copyText(button.closest(".code").querySelector("code").textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  };
  const found = useMemo(() => blocks(text), [text]);
  return html`<div class="markdown" onClick=${onClick}>${found.map((block, place) =>
    html`<div key=${place} dangerouslySetInnerHTML=${{ __html: block }}></div>`)}</div>`;
}

function Call({ call }) {
  return html`<details class="call" open><summary>Calls <code>${call.name}</code></summary>
    <pre tabindex="0">${pretty(call.text)}</pre></details>`;
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

// What the tools answered, which the reader types.
function Results({ chat, turn }) {
  const results = useRef(turn.calls.map(() => ""));
  const give = (event) => {
    event.preventDefault();
    giveResults(chat, turn, results.current);
  };
  return html`<form class="results" onSubmit=${give}>
    ${turn.calls.map((call, place) => html`<label class="field" key=${call.id}><span class="label">Result of ${call.name}</span>
      <textarea rows="2" placeholder='{"temperature": 21}'
        onInput=${(event) => { results.current[place] = event.target.value; }}></textarea></label>`)}
    <div class="actions"><button class="primary">Give the result${turn.calls.length > 1 ? "s" : ""}</button></div></form>`;
}

function Progress({ turn }) {
  if (turn.pieces.length) return html`<span class="writing" aria-hidden="true"></span>`;
  const read = turn.progress;
  if (!read) return html`<p class="soft waiting">Waiting for the first token …</p>`;
  return html`<p class="soft waiting">Reading the prompt: ${whole(read.processed)} of ${whole(read.total)} tokens
    <progress max=${read.total} value=${read.processed} aria-label="Prompt"></progress></p>`;
}

function Branches({ chat, turn, isBusy }) {
  const all = branches(chat, turn);
  if (all.length < 2) return null;
  const place = all.indexOf(turn);
  const go = (to) => {
    choose(chat, all[to]);
    chats.save(chat);
  };
  return html`<span class="branches">
    <button type="button" class="quiet" aria-label="Earlier version" disabled=${isBusy || place === 0}
      onClick=${() => go(place - 1)}>‹</button>
    <span aria-label=${`Version ${place + 1} of ${all.length}`}>${place + 1}/${all.length}</span>
    <button type="button" class="quiet" aria-label="Later version" disabled=${isBusy || place === all.length - 1}
      onClick=${() => go(place + 1)}>›</button></span>`;
}

function Facts({ turn }) {
  const { usage, ttft } = turn;
  const facts = [
    [rate(turn), (value) => `${number(value)} tokens/s`, "speed of the answer"],
    [ttft, (value) => `first after ${time(value)}`, "time to the first token, as this browser saw it"],
    [usage?.completion_tokens, (value) => `${whole(value)} tokens`, "tokens of the answer"],
    [usage?.prompt_tokens, (value) => `prompt ${whole(value)}`, "tokens of the prompt"],
    [usage?.prompt_tokens_details?.cached_tokens || null, (value) => `${whole(value)} cached`, "of these, found in the cache"],
    [ENDS[turn.finish], (value) => value, "why the answer ended"],
  ].filter(([value]) => value !== null && value !== undefined);
  return html`<span class="facts">${facts.map(([value, words, title]) =>
    html`<span key=${title} title=${title}>${words(value)}</span>`)}</span>`;
}
