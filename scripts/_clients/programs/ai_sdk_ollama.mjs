// Vercel's AI SDK with its community's provider for Ollama, which sends options and tool_choice at the top level.
import { generateText, stepCountIs, streamText, tool } from "ai";
import { createOllama } from "ollama-ai-provider-v2";
import { ASK_FOR_WEATHER, MODEL, Place, URL, WEATHER, collect, equal, getWeather, run } from "./checks.mjs";

const model = createOllama({ baseURL: `${URL}/api` })(MODEL);
const given = { model, maxRetries: 0, temperature: 0, topP: 0.9, maxOutputTokens: 200 };
const tools = { get_weather: tool({ description: "Get the weather.", inputSchema: Place, execute: getWeather }) };

await run({
  async generateText() {
    equal((await generateText({ ...given, prompt: "say hello" })).text, "hello");
  },
  async streamText() {
    equal(await collect(streamText({ ...given, prompt: "count 5" }).textStream), "1, 2, 3, 4, 5");
  },
  async maxOutputTokens() {
    equal((await generateText({ ...given, prompt: "count 9", maxOutputTokens: 4 })).text, "1, 2");
  },
  async "tool loop"() {
    const asked = { ...given, prompt: ASK_FOR_WEATHER, tools, toolChoice: "auto", stopWhen: stepCountIs(3) };
    equal((await generateText(asked)).text.includes(WEATHER), true);
  },
});
