// OpenAI's JavaScript SDK.
import OpenAI, { toFile } from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import {
  ANSWER, ASK_FOR_WEATHER, City, IMAGES_MODEL, MODELS_URL, MODEL, PARAMETERS, PARIS, PICTURE, PICTURE_TOKENS, URL, WEATHER,
  WHAT, collect, equal, getWeather, run,
} from "./checks.mjs";

const client = new OpenAI({ baseURL: `${URL}/v1`, apiKey: "none", maxRetries: 0 });
const pictured = new OpenAI({ baseURL: `${MODELS_URL}/v1`, apiKey: "none", maxRetries: 0 });
const ask = (content) => ({ model: MODEL, messages: [{ role: "user", content }] });

await run({
  async chat() {
    equal((await client.chat.completions.create(ask("say hello"))).choices[0].message.content, "hello");
  },
  async stream() {
    const stream = await client.chat.completions.create({ ...ask("count 5"), stream: true });
    async function* texts() {
      for await (const chunk of stream) yield chunk.choices[0]?.delta?.content ?? "";
    }
    equal(await collect(texts()), "1, 2, 3, 4, 5");
  },
  async parse() {
    const format = zodResponseFormat(City, "city");
    const answer = await client.chat.completions.parse({ ...ask(ANSWER), response_format: format });
    equal(answer.choices[0].message.parsed, PARIS);
  },
  async runTools() {
    const tool = {
      type: "function",
      function: { name: "get_weather", function: getWeather, parse: JSON.parse, parameters: PARAMETERS },
    };
    const runner = client.chat.completions.runTools({ ...ask(ASK_FOR_WEATHER), tools: [tool] });
    equal((await runner.finalContent()).includes(WEATHER), true);
  },
  async responses() {
    equal((await client.responses.create({ model: MODEL, input: "say hello" })).output_text, "hello");
    const stream = client.responses.stream({ model: MODEL, input: "say more" });
    equal((await stream.finalResponse()).output_text, "more");
  },
  async "parse of responses"() {
    const text = { format: zodTextFormat(City, "city") };
    equal((await client.responses.parse({ model: MODEL, input: ANSWER, text })).output_parsed, PARIS);
  },
  async "an image"() {
    const tokens = async (...images) => {
      const messages = [{ role: "user", content: [...images, { type: "text", text: WHAT }] }];
      return (await pictured.chat.completions.create({ model: IMAGES_MODEL, messages, max_tokens: 4 })).usage.prompt_tokens;
    };
    const image = { type: "image_url", image_url: { url: `data:image/png;base64,${PICTURE}` } };
    equal((await tokens(image)) - (await tokens()), PICTURE_TOKENS);
  },
  async "a batch"() {
    const endpoint = "/v1/chat/completions";
    const lines = ["say hello", "say more"].map((said, number) => (
      JSON.stringify({ custom_id: `${number}`, method: "POST", url: endpoint, body: ask(said) })
    ));
    const content = lines.join("\n");
    const file = await client.files.create({ file: await toFile(Buffer.from(content), "input.jsonl"), purpose: "batch" });
    equal(await (await client.files.content(file.id)).text(), content);
    let batch = await client.batches.create({ input_file_id: file.id, endpoint, completion_window: "24h" });
    while (!["completed", "failed"].includes(batch.status)) {
      await new Promise((resolve) => setTimeout(resolve, 100));
      batch = await client.batches.retrieve(batch.id);
    }
    equal(batch.request_counts.completed, 2);
    const results = (await (await client.files.content(batch.output_file_id)).text()).trim().split("\n").map(JSON.parse);
    const texts = results.map((each) => [each.custom_id, each.response.body.choices[0].message.content]);
    equal(texts.sort(), [["0", "hello"], ["1", "more"]]);
    const listed = async (pages) => { for await (const each of pages) if (each.id === batch.id || each.id === file.id) return true; };
    equal(await listed(client.batches.list()), true);
    equal(await listed(client.files.list({ purpose: "batch" })), true);
    equal((await client.files.delete(file.id)).deleted, true);
    const status = await client.batches.cancel(batch.id).then(() => 200, (error) => error.status);
    equal(status, 400);
  },
});
