// What the JavaScript programs share. Each prints a line of JSON for each check, as checks.py does.
import { z } from "zod";

// The server's, without /v1.
export const URL = process.env.CHECKED_URL;
export const MODEL = "demo";
// Another server, whose model reads images; its answers have no meaning.
export const MODELS_URL = process.env.CHECKED_MODELS_URL;
export const IMAGES_MODEL = process.env.CHECKED_IMAGES_MODEL;
// A PNG in base64, and its tokens in a prompt of that model.
export const PICTURE = process.env.CHECKED_PICTURE;
export const PICTURE_TOKENS = Number(process.env.CHECKED_PICTURE_TOKENS);
export const WHAT = "What is this?";
// A recording in English, and its text as a plain request gets it.
export const SPEECH_MODEL = process.env.CHECKED_SPEECH_MODEL;
export const RECORDING = process.env.CHECKED_RECORDING;
export const TRANSCRIPT = process.env.CHECKED_TRANSCRIPT;
export const PARIS = { name: "Paris", people: 2100000 };
export const City = z.object({ name: z.string(), people: z.number() });
// With the white space that answers to a schema have.
export const PARIS_JSON = `{"name": "Paris", "people": 2100000}`;
export const ANSWER = `say ${PARIS_JSON}`;
export const WEATHER = "21 degrees";
export const Place = z.object({ city: z.string() });
export const PARAMETERS = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
export const getWeather = ({ city }) => `${WEATHER} in ${city}`;
// The scripted model calls the tool. It repeats the last line of its prompt, so the tool's result is the answer then.
export const call = (name, json) => `say <tool_call>⏎{"name": "${name}", "arguments": ${json}}⏎</tool_call>`;
export const ASK_FOR_WEATHER = call("get_weather", `{"city": "Paris"}`);

// The demo models for embeddings and reranking know which of these the question means: the first.
export const QUESTION = "Which of these is about France?";
export const ABOUT = ["Paris is the capital of France.", "It will rain all afternoon.", "The cat sleeps on the sofa."];

export function equal(found, wanted) {
  const [one, other] = [JSON.stringify(found), JSON.stringify(wanted)];
  if (one !== other) throw new Error(`${one} instead of ${other}`);
}

export async function collect(texts) {
  let whole = "";
  for await (const text of texts) whole += text;
  return whole;
}

export async function run(checks) {
  for (const [check, test] of Object.entries(checks)) {
    let why = "";
    try {
      await test();
    } catch (error) {
      console.error(error);
      why = String(error);
    }
    console.log(JSON.stringify({ check, why }));
  }
}
