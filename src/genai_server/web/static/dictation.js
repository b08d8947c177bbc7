// A button that writes down what the reader says, where a model transcribes and the browser has a microphone.
import { useChanges } from "./emitter.js";
import { html, useEffect, useRef, useState } from "./html.js";
import { Icon } from "./icons.js";
import { hasMicrophone, recording, transcribed } from "./microphone.js";
import { models, transcriber } from "./models.js";

const LABELS = { idle: "Dictate", starting: "Dictate", recording: "Stop recording", transcribing: "Transcribing" };

// `onText` gets what was said, `onProblem` a sentence, or "" once nothing is wrong any more.
export function Dictation({ onText, onProblem }) {
  useChanges(models);
  const [state, setState] = useState("idle");
  // The recording, and the model that is to transcribe it.
  const recorded = useRef(null);
  const isGone = useRef(false);
  const model = hasMicrophone() ? transcriber(models) : undefined;
  useEffect(() => () => {
    isGone.current = true;
    recorded.current?.stop();
  }, []);
  if (!model && state === "idle") return null;
  const attempt = async (work) => {
    try {
      await work();
    } catch (error) {
      onProblem(error.message);
      setState("idle");
    }
  };
  const begin = () => attempt(async () => {
    onProblem("");
    setState("starting");
    recorded.current = { ...await recording(), model };
    if (isGone.current) recorded.current.stop();
    setState("recording");
  });
  const end = () => attempt(async () => {
    setState("transcribing");
    const text = await transcribed(await recorded.current.stop(), recorded.current.model);
    recorded.current = null;
    setState("idle");
    if (text) onText(text);
    else onProblem("Nothing was said in the recording.");
  });
  const isRecording = state === "recording";
  return html`<button type="button" class=${`quiet icon-button dictate ${state}`} aria-label=${LABELS[state]}
    title=${isRecording ? "Stop and write it down" : "Speak instead of writing"} aria-pressed=${isRecording}
    disabled=${state === "starting" || state === "transcribing"} onClick=${isRecording ? end : begin}>
    <${Icon} name="microphone" /></button>`;
}
