// Anthropic's JavaScript SDK.
import Anthropic from "@anthropic-ai/sdk";
import { betaTool } from "@anthropic-ai/sdk/helpers/beta/json-schema";
import { zodOutputFormat } from "@anthropic-ai/sdk/helpers/zod";
import {
  ANSWER, ASK_FOR_WEATHER, City, IMAGES_MODEL, MODELS_URL, MODEL, PARAMETERS, PARIS, PICTURE, PICTURE_TOKENS, URL, WEATHER,
  WHAT, equal, getWeather, run,
} from "./checks.mjs";

const client = new Anthropic({ baseURL: URL, apiKey: "none", maxRetries: 0 });
const pictured = new Anthropic({ baseURL: MODELS_URL, apiKey: "none", maxRetries: 0 });
const ask = (content) => ({ model: MODEL, max_tokens: 200, messages: [{ role: "user", content }] });

await run({
  async messages() {
    equal((await client.messages.create(ask("say hello"))).content[0].text, "hello");
  },
  async stream() {
    equal(await client.messages.stream(ask("count 5")).finalText(), "1, 2, 3, 4, 5");
  },
  async parse() {
    const answer = await client.messages.parse({ ...ask(ANSWER), output_config: { format: zodOutputFormat(City) } });
    equal(answer.parsed_output, PARIS);
  },
  async toolRunner() {
    const tool = betaTool({ name: "get_weather", description: "Get the weather.", inputSchema: PARAMETERS, run: getWeather });
    const last = await client.beta.messages.toolRunner({ ...ask(ASK_FOR_WEATHER), tools: [tool] });
    equal(last.content[0].text.includes(WEATHER), true);
  },
  async "count tokens"() {
    const { model, messages } = ask("say hello");
    equal((await client.messages.countTokens({ model, messages })).input_tokens > 0, true);
  },
  async "an image"() {
    const tokens = async (...images) => {
      const messages = [{ role: "user", content: [...images, { type: "text", text: WHAT }] }];
      return (await pictured.messages.countTokens({ model: IMAGES_MODEL, messages })).input_tokens;
    };
    const image = { type: "image", source: { type: "base64", media_type: "image/png", data: PICTURE } };
    equal((await tokens(image)) - (await tokens()), PICTURE_TOKENS);
  },
});
