// Vercel's AI SDK, over both APIs.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { Output, generateText, stepCountIs, streamText, tool } from "ai";
import {
  ANSWER, ASK_FOR_WEATHER, City, IMAGES_MODEL, MODELS_URL, MODEL, PARIS, PARIS_JSON, PICTURE, PICTURE_TOKENS, Place, URL,
  WEATHER, WHAT, call, collect, equal, getWeather, run,
} from "./checks.mjs";

const baseURL = `${URL}/v1`;
const openai = createOpenAICompatible({ name: "genai", baseURL, apiKey: "none", includeUsage: true, supportsStructuredOutputs: true });
const providers = { "openai-compatible": openai(MODEL), anthropic: createAnthropic({ baseURL, apiKey: "none" })(MODEL) };
const given = { maxRetries: 0, maxOutputTokens: 200 };
const tools = { get_weather: tool({ description: "Get the weather.", inputSchema: Place, execute: getWeather }) };
const checks = {};

for (const [name, model] of Object.entries(providers)) {
  checks[`${name}: generateText`] = async () => {
    equal((await generateText({ model, prompt: "say hello", ...given })).text, "hello");
  };
  checks[`${name}: streamText`] = async () => {
    equal(await collect(streamText({ model, prompt: "count 5", ...given }).textStream), "1, 2, 3, 4, 5");
  };
  checks[`${name}: an object`] = async () => {
    // Anthropic's provider has a tool of this name called.
    const prompt = name === "anthropic" ? call("json", PARIS_JSON) : ANSWER;
    equal((await generateText({ model, prompt, output: Output.object({ schema: City }), ...given })).output, PARIS);
  };
  checks[`${name}: tool loop`] = async () => {
    const answer = await generateText({ model, prompt: ASK_FOR_WEATHER, tools, stopWhen: stepCountIs(3), ...given });
    equal(answer.text.includes(WEATHER), true);
  };
}

const pictured = {
  "openai-compatible": createOpenAICompatible({ name: "genai", baseURL: `${MODELS_URL}/v1`, apiKey: "none" })(IMAGES_MODEL),
  anthropic: createAnthropic({ baseURL: `${MODELS_URL}/v1`, apiKey: "none" })(IMAGES_MODEL),
};
for (const [name, model] of Object.entries(pictured)) {
  checks[`${name}: an image`] = async () => {
    const tokens = async (...images) => {
      const messages = [{ role: "user", content: [...images, { type: "text", text: WHAT }] }];
      return (await generateText({ model, messages, ...given, maxOutputTokens: 4 })).usage.inputTokens;
    };
    equal((await tokens({ type: "image", image: PICTURE, mediaType: "image/png" })) - (await tokens()), PICTURE_TOKENS);
  };
}

await run(checks);
