// What the reader says, recorded by the browser and transcribed by the server.
import { ask } from "./api.js";

// Browsers have no microphone for pages that come over http from another machine.
export const hasMicrophone = () => Boolean(navigator.mediaDevices?.getUserMedia && window.MediaRecorder);

// Begin to record. Throws Error with a sentence.
export async function recording() {
  let stream;
  let recorder;
  const release = () => stream?.getTracks().forEach((track) => track.stop());
  try {
    stream = await navigator.mediaDevices.getUserMedia({ audio: true });
    recorder = new MediaRecorder(stream);
    recorder.start();
  } catch (error) {
    release();
    throw new Error(error.name === "NotAllowedError" ? "The browser does not let this page use the microphone."
      : `The microphone cannot be used: ${error.message}`);
  }
  const parts = [];
  recorder.ondataavailable = ({ data }) => parts.push(data);
  const ended = new Promise((resolve) => { recorder.onstop = resolve; });
  return {
    // End the recording, and return it.
    async stop() {
      if (recorder.state !== "inactive") recorder.stop();
      await ended;
      release();
      return new Blob(parts, { type: recorder.mimeType });
    },
  };
}

// The text of a recording. Throws ApiError.
export async function transcribed(sound, model, name = nameOf(sound)) {
  const body = new FormData();
  body.append("file", sound, name);
  body.append("model", model.id);
  return (await ask("v1/audio/transcriptions", { method: "POST", body })).text.trim();
}

// By its type, such as audio/webm;codecs=opus.
const nameOf = ({ type }) => `recording.${type.match(/^audio\/(\w+)/)?.[1] ?? "webm"}`;
