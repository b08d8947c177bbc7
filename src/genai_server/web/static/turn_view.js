// One turn of a conversation.
import { AttachmentList } from "./attachment_list.js";
import { numHidden } from "./chat_tree.js";
import { answerNow } from "./completion.js";
import { isContextFull, isTooLong } from "./context.js";
import { ContextNotice } from "./context_notice.js";
import { approve, edit, giveResults, showLater } from "./chat_actions.js";
import { whole } from "./figures.js";
import { html, useRef, useState } from "./html.js";
import { MarkdownView } from "./markdown_view.js";
import { focused } from "./parts.js";
import { partsOf, waitsForApproval } from "./tool_servers.js";
import { TurnTools } from "./turn_tools.js";

const LABELS = { user: "You", assistant: "Answer" };
const BODIES = { user: Question, tool: Result, assistant: Answer };

export function TurnView(props) {
  const { chat, turn, isBusy, isLast, isWriting, isEdited, onEdit } = props;
  const save = (text, attachments) => {
    onEdit(null);
    edit(chat, turn, text, attachments);
  };
  return html`<article class=${`turn ${turn.role}${isLast ? " last" : ""}`} aria-label=${LABELS[turn.role] ?? `Result of ${turn.name}`}
      aria-busy=${isWriting}>
    ${isEdited ? html`<${EditForm} turn=${turn} isBusy=${isBusy} onSave=${save} onCancel=${() => onEdit(null)} />`
      : html`<${BODIES[turn.role]} ...${props} />
        ${isWriting ? html`<div class="turn-tools"></div>` : html`<${TurnTools} ...${props} onEdit=${() => onEdit(turn.id)} />
          ${isLast && html`<${Later} ...${props} />`}`}`}
  </article>`;
}

// What the reader has hidden by continuing from an earlier turn.
function Later({ chat, turn, isBusy }) {
  const number = numHidden(chat, turn);
  return number > 0 && html`<p class="later soft">${number} later message${number === 1 ? "" : "s"} ·${" "}<button type="button" class="small" disabled=${isBusy} onClick=${() => showLater(chat, turn)}>Show</button></p>`;
}

function EditForm({ turn, isBusy, onSave, onCancel }) {
  const [text, setText] = useState(turn.content);
  const [attached, setAttached] = useState(turn.attachments ?? []);
  const isEmpty = !text.trim() && !attached.length;
  const save = (event) => {
    event.preventDefault();
    if (!isEmpty && !isBusy) onSave(text, attached);
  };
  const onKeyDown = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) save(event);
    if (event.key !== "Escape") return;
    event.stopPropagation();
    onCancel();
  };
  return html`<form class="edit" onSubmit=${save} onKeyDown=${onKeyDown}>
    <${AttachmentList} attachments=${attached} onRemove=${setAttached} />
    <textarea aria-label="Edit your message" rows="4" value=${text} ref=${focused}
      onInput=${(event) => setText(event.target.value)}></textarea>
    <div class="actions"><button type="button" class="quiet" onClick=${onCancel}>Cancel</button>
      <button class="primary" disabled=${isEmpty || isBusy}>${turn.role === "assistant" ? "Save" : "Send"}</button></div></form>`;
}

function Question({ turn }) {
  return html`<${AttachmentList} attachments=${turn.attachments} />
    ${turn.content.trim() && html`<div class="bubble">${turn.content}</div>`}`;
}

function Result({ turn }) {
  return html`<details class="call"><summary>Result of <code>${turn.name}</code></summary><pre tabindex="0">${turn.content}</pre></details>`;
}

function Answer({ chat, turn, isLast, isBusy, isWriting }) {
  const isFull = !isWriting && isContextFull(turn);
  return html`
    ${turn.reasoning && html`<details class="reasoning"><summary>${isWriting && !turn.content ? "Reasoning …" : "Reasoning"}</summary>
      <div>${turn.reasoning}</div></details>`}
    ${isWriting && turn.reasoning && !turn.content && turn.answerId && html`<button type="button" class="small"
      onClick=${() => answerNow(turn)}>Answer now</button>`}
    ${partsOfAnswer(turn).map(({ run, text }, place) => (run ? html`<${Run} key=${run.id} run=${run} isWriting=${isWriting} />`
      : html`<${MarkdownView} key=${place} text=${text} isWriting=${isWriting} />`))}
    ${turn.calls.map((call) => html`<${Call} key=${call.id} call=${call} />`)}
    ${isLast && !isWriting && turn.calls.length > 0 && turn.finish === "tool_calls"
      && html`<${turn.calls.every((call) => waitsForApproval(chat.settings, call)) ? Approval : Results} chat=${chat} turn=${turn} />`}
    ${isWriting && html`<${Progress} turn=${turn} />`}
    ${turn.ignored && html`<p class="soft">Had no effect: ${turn.ignored}</p>`}
    ${turn.leftOut > 0 && html`<p class="soft">Without the oldest ${turn.leftOut === 1 ? "question and its answer"
      : `${turn.leftOut} questions and their answers`}.</p>`}
    ${isFull && isLast && html`<${ContextNotice} chat=${chat} turn=${turn} isBusy=${isBusy} />`}
    ${turn.error && !(isFull && isLast) && html`<p class="error" role="alert">${isTooLong(turn) ? "The context was full." : turn.error}</p>`}
    ${turn.isRefused && !(isFull && isLast) && html`<p class="soft">The messages that follow are sent without the refused one.</p>`}`;
}

// The texts of an answer, and the tools that the server has run between them.
function partsOfAnswer({ content, runs = [] }) {
  const found = [];
  let place = 0;
  for (const run of runs) {
    if (run.place > place) found.push({ text: content.slice(place, run.place) });
    found.push({ run });
    place = run.place;
  }
  return place < content.length || !found.length ? [...found, { text: content.slice(place) }] : found;
}

const STATUSES = { failed: " failed", incomplete: " was not completed" };

function Run({ run, isWriting }) {
  const isRunning = run.output === undefined && isWriting;
  const state = isRunning ? " is running …" : run.output === undefined ? STATUSES.incomplete : STATUSES[run.status] ?? "";
  return html`<details class="call run"><summary>${run.server}: <code>${run.name}</code><span class="soft">${state}</span></summary>
    <pre tabindex="0" aria-label="Arguments">${pretty(run.arguments)}</pre>
    ${run.output !== undefined && html`<pre tabindex="0" aria-label="Result">${run.output}</pre>`}</details>`;
}

// Calls of tool servers that the reader lets run, or not.
function Approval({ chat, turn }) {
  const [declined, setDeclined] = useState(new Set());
  const toggle = (id) => setDeclined((before) => new Set(before.has(id) ? [...before].filter((each) => each !== id) : [...before, id]));
  const several = turn.calls.length > 1;
  return html`<div class="results approval" role="group" aria-label="Approval">
    ${several && turn.calls.map((call) => html`<label class="check" key=${call.id}>
      <input type="checkbox" checked=${!declined.has(call.id)} onChange=${() => toggle(call.id)} />
      <span>Run <code>${partsOf(call).tool}</code> of ${partsOf(call).server}</span></label>`)}
    <div class="actions"><button type="button" class="quiet"
        onClick=${() => approve(chat, turn, new Set(turn.calls.map(({ id }) => id)))}>Decline${several ? " all" : ""}</button>
      <button type="button" class="primary" onClick=${() => approve(chat, turn, declined)}>${several ? "Run these"
        : `Run ${partsOf(turn.calls[0]).tool} of ${partsOf(turn.calls[0]).server}`}</button></div></div>`;
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
    <div class="actions"><button class="primary">Send result${turn.calls.length > 1 ? "s" : ""}</button></div></form>`;
}

function Progress({ turn }) {
  if (turn.pieces.length) return null;
  const read = turn.progress;
  if (!read) return html`<p class="soft waiting">Waiting for the first token …</p>`;
  return html`<p class="soft waiting">Reading the prompt: ${whole(read.processed)} of ${whole(read.total)} tokens
    <progress max=${read.total} value=${read.processed} aria-label="Prompt"></progress></p>`;
}
