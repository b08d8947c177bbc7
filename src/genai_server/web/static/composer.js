// Where the reader writes or speaks, and attaches files. Enter sends, Shift+Enter makes a line.
import { attachment, dataUrl } from "./attachments.js";
import { AttachmentList } from "./attachment_list.js";
import { Dictation } from "./dictation.js";
import { drafts } from "./drafts.js";
import { useChanges } from "./emitter.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "./html.js";
import { IconButton } from "./icons.js";
import { transcribed } from "./microphone.js";
import { hears, models, refusalOf, transcriber } from "./models.js";

export function Composer({ isBusy, problem, onSend, onStop, onEditLast, chatId }) {
  useChanges(drafts);
  const { text, attachments: attached } = drafts.of(chatId);
  const setText = (text) => drafts.change(chatId, { text });
  const setAttached = (attachments) => drafts.change(chatId, { attachments });
  // Why files were not attached, or speech was not written down, one sentence each.
  const [refused, setRefused] = useState([]);
  // The names of files that are being read.
  const [reading, setReading] = useState([]);
  const [isDropping, setDropping] = useState(false);
  const area = useRef();
  const input = useRef();
  const isEmpty = !text.trim() && !attached.length;
  useEffect(() => {
    area.current.focus({ preventScroll: true });
    setRefused([]);
  }, [chatId]);
  useLayoutEffect(() => {
    area.current.style.height = "auto";
    area.current.style.height = `${Math.min(area.current.scrollHeight + 2, 240)}px`;
  }, [text]);
  const attach = async (files) => {
    setReading([...files].map(({ name }) => name));
    const found = await Promise.allSettled([...files].map(attachable));
    setReading([]);
    setAttached([...drafts.of(chatId).attachments, ...found.filter(({ value }) => value).map(({ value }) => value)]);
    setRefused([...new Set(found.filter(({ reason }) => reason).map(({ reason }) => reason.message))]);
    area.current?.focus();
  };
  useFilesDropped(attach, setDropping);
  const send = () => {
    const draft = drafts.of(chatId);
    if (isBusy || reading.length || (!draft.text.trim() && !draft.attachments.length)) return;
    if (!onSend(draft.text, draft.attachments)) return;
    drafts.clear(chatId);
    setRefused([]);
  };
  const insert = (said) => {
    const { value, selectionStart: start, selectionEnd: end } = area.current;
    area.current.setRangeText(/\S$/.test(value.slice(0, start)) ? ` ${said}` : said, start, end, "end");
    setText(area.current.value);
    area.current.focus();
  };
  const onKeyDown = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    }
    if (event.key === "ArrowUp" && !event.target.value && onEditLast()) event.preventDefault();
  };
  const onPaste = (event) => {
    const { files, types } = event.clipboardData;
    // Office programs add a picture of the formatted text that they copy, and file managers the name of a file.
    if (!files.length || (types.includes("text/plain") && types.includes("text/html"))) return;
    event.preventDefault();
    attach(files);
  };
  const onChosen = (event) => {
    const chosen = [...event.target.files];
    event.target.value = "";
    attach(chosen);
  };
  return html`<form class="composer" onSubmit=${(event) => { event.preventDefault(); send(); }}>
    ${[problem, ...refused].filter(Boolean).map((each) => html`<p class="error" role="alert" key=${each}>${each}</p>`)}
    ${reading.length > 0 && html`<p class="soft" role="status">Reading ${reading.join(", ")} …</p>`}
    <div class=${`composer-box${isDropping ? " dropping" : ""}`}>
      <${AttachmentList} attachments=${attached} onRemove=${setAttached} />
      <input type="file" multiple hidden ref=${input} onChange=${onChosen} aria-label="Files" />
      <${IconButton} icon="attach" label="Attach files" title="Attach images, recordings, PDF or text files; they can also be pasted or dropped"
        onClick=${() => input.current.click()} />
      <textarea ref=${area} rows="1" aria-label="Message" placeholder="Write a message" value=${text}
        onInput=${(event) => setText(event.target.value)} onKeyDown=${onKeyDown} onPaste=${onPaste}></textarea>
      <${Dictation} onText=${insert} onProblem=${(problem) => setRefused([problem])} />
      ${isBusy ? html`<button type="button" class="primary" onClick=${onStop}>Stop</button>`
        : html`<button class="primary" disabled=${isEmpty || reading.length > 0}>Send</button>`}
    </div></form>`;
}

// A file as an attachment for the chosen model. Throws Error with a sentence.
async function attachable(file) {
  const made = await attachment(file, heard);
  const refusal = refusalOf(models, [made]);
  if (refusal) throw new Error(refusal);
  return made;
}

// A recording for a model that hears, and else what a model of this server has written down. Throws Error with a sentence.
async function heard(file, type) {
  if (models.chosen && hears(models.chosen)) return { url: await dataUrl(file, type, "a recording") };
  const model = transcriber(models);
  if (!model) throw new Error(`${file.name} is a recording, and no model of this server hears or transcribes.`);
  const text = await transcribed(file, model, file.name).catch((error) => { throw new Error(`${file.name}: ${error.message}`); });
  if (!text) throw new Error(`Nothing is said in ${file.name}.`);
  return { text };
}

// Files may be dropped anywhere on the page, which a browser would otherwise leave for the file.
function useFilesDropped(attach, setDropping) {
  const latest = useRef();
  latest.current = attach;
  useEffect(() => {
    const onFiles = (action) => (event) => {
      if (!event.dataTransfer?.types.includes("Files")) return;
      event.preventDefault();
      action(event);
    };
    const listeners = {
      dragover: onFiles(() => setDropping(true)),
      dragleave: (event) => { if (!event.relatedTarget) setDropping(false); },
      drop: onFiles((event) => { setDropping(false); latest.current(event.dataTransfer.files); }),
    };
    for (const [name, listener] of Object.entries(listeners)) addEventListener(name, listener);
    return () => { for (const [name, listener] of Object.entries(listeners)) removeEventListener(name, listener); };
  }, []);
}
