// Transcriptions and translations with OpenAI's JavaScript SDK.
import { createReadStream } from "node:fs";
import OpenAI from "openai";
import { RECORDING, SPEECH_MODEL, TRANSCRIPT, URL, collect, equal, run } from "./checks.mjs";

const client = new OpenAI({ baseURL: `${URL}/v1`, apiKey: "none", maxRetries: 0 });
const { transcriptions, translations } = client.audio;
const ask = (more) => ({ model: SPEECH_MODEL, file: createReadStream(RECORDING), ...more });

await run({
  async transcription() {
    equal((await transcriptions.create(ask())).text, TRANSCRIPT);
  },
  async stream() {
    const stream = await transcriptions.create(ask({ stream: true }));
    let done = "";
    async function* texts() {
      for await (const event of stream) {
        if (event.type === "transcript.text.done") done = event.text;
        else yield event.delta;
      }
    }
    equal(await collect(texts()), TRANSCRIPT);
    equal(done, TRANSCRIPT);
  },
  async verbose_json() {
    const given = { response_format: "verbose_json", timestamp_granularities: ["segment"] };
    const answer = await transcriptions.create(ask(given));
    equal(answer.segments.map((segment) => segment.text).join("").trim(), TRANSCRIPT);
  },
  async "times of words"() {
    const given = { response_format: "verbose_json", timestamp_granularities: ["word"] };
    const { words, duration } = await transcriptions.create(ask(given));
    equal(words.map(({ word }) => word).join(" "), TRANSCRIPT.match(/[\w']+/g).join(" "));
    const times = words.flatMap(({ start, end }) => [start, end]);
    equal(times.join(), times.toSorted((one, other) => one - other).join());
    equal(times[0] >= 0 && times.at(-1) <= duration, true);
  },
  async "text, srt"() {
    equal((await transcriptions.create(ask({ response_format: "text" }))).trim(), TRANSCRIPT);
    equal((await transcriptions.create(ask({ response_format: "srt" }))).includes(TRANSCRIPT), true);
  },
  async translation() {
    equal(Boolean((await translations.create(ask())).text), true);
  },
  async errors() {
    const refused = await transcriptions.create(ask({ language: "tlh" })).catch((error) => error);
    equal([refused instanceof OpenAI.BadRequestError, refused.param], [true, "language"]);
  },
});
