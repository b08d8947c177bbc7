// Ollama's JavaScript client.
import { Ollama } from "ollama";
import { z } from "zod";
import {
  ANSWER, ASK_FOR_WEATHER, City, IMAGES_MODEL, MODELS_URL, MODEL, PARAMETERS, PARIS, PICTURE, PICTURE_TOKENS, URL, WEATHER,
  WHAT, equal, getWeather, run,
} from "./checks.mjs";

const client = new Ollama({ host: URL });
const pictured = new Ollama({ host: MODELS_URL });
const ask = (content) => ({ model: MODEL, messages: [{ role: "user", content }] });
const tool = { type: "function", function: { name: "get_weather", description: "Get the weather.", parameters: PARAMETERS } };

await run({
  async chat() {
    const answer = await client.chat({ ...ask("say hello"), options: { temperature: 0, num_ctx: 4096 } });
    equal([answer.message.content, answer.done, answer.done_reason], ["hello", true, "stop"]);
  },
  async stream() {
    let whole = "";
    for await (const part of await client.chat({ ...ask("count 5"), stream: true })) whole += part.message.content;
    equal(whole, "1, 2, 3, 4, 5");
  },
  async generate() {
    equal((await client.generate({ model: MODEL, prompt: "say hello" })).response, "hello");
  },
  async format() {
    const answer = await client.chat({ ...ask(ANSWER), format: z.toJSONSchema(City) });
    equal(City.parse(JSON.parse(answer.message.content)), PARIS);
  },
  async think() {
    const { message } = await client.chat({ ...ask("say <think>so</think>yes"), think: true });
    equal([message.thinking, message.content], ["so", "yes"]);
  },
  async "tool loop"() {
    const asked = { ...ask(ASK_FOR_WEATHER), tools: [tool] };
    const { message } = await client.chat(asked);
    const [call] = message.tool_calls;
    const result = { role: "tool", tool_name: call.function.name, content: getWeather(call.function.arguments) };
    const last = await client.chat({ ...asked, messages: [...asked.messages, message, result] });
    equal(last.message.content.includes(WEATHER), true);
  },
  async "list, show, ps"() {
    equal((await client.list()).models.map((each) => each.model), [`${MODEL}:latest`]);
    equal((await client.show({ model: MODEL })).capabilities.includes("completion"), true);
    equal((await client.ps()).models.length, 1);
  },
  async "an image"() {
    const tokens = async (...images) => {
      const messages = [{ role: "user", content: WHAT, images }];
      return (await pictured.chat({ model: IMAGES_MODEL, messages, options: { num_predict: 4 } })).prompt_eval_count;
    };
    equal((await tokens(Buffer.from(PICTURE, "base64"))) - (await tokens()), PICTURE_TOKENS);
  },
  async abort() {
    const stream = await client.chat({ ...ask("delay 0.05; count 500"), stream: true });
    setTimeout(() => stream.abort(), 200);
    const why = await (async () => {
      for await (const _ of stream);
    })().catch((error) => error.name);
    equal(why, "AbortError");
  },
  async errors() {
    const why = await client.chat({ ...ask("x"), model: "gpt-9" }).catch((error) => [error.status_code, error.error]);
    equal([why[0], why[1].includes("not found")], [404, true]);
  },
});
