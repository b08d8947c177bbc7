// Transcriptions with Vercel's AI SDK.
import { readFile } from "node:fs/promises";
import { createOpenAI } from "@ai-sdk/openai";
import { experimental_transcribe as transcribe } from "ai";
import { RECORDING, SPEECH_MODEL, TRANSCRIPT, URL, equal, run } from "./checks.mjs";

const model = createOpenAI({ baseURL: `${URL}/v1`, apiKey: "none" }).transcription(SPEECH_MODEL);
const given = { model, audio: await readFile(RECORDING), maxRetries: 0 };

await run({
  async transcribe() {
    equal((await transcribe(given)).text, TRANSCRIPT);
  },
  async "segments and language"() {
    // The SDK asks models that it does not know for plain JSON, which has no segments.
    const openai = { temperature: 0, responseFormat: "verbose_json", timestampGranularities: ["segment"] };
    const found = await transcribe({ ...given, providerOptions: { openai } });
    equal(found.text, TRANSCRIPT);
    equal(found.segments.map((segment) => segment.text).join("").trim(), TRANSCRIPT);
    equal(found.language, "en");
    equal(found.durationInSeconds > 1, true);
  },
});
