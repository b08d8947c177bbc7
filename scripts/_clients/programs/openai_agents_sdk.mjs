// OpenAI's Agents SDK for JavaScript: agents whose tools the client runs, with all turns in one session.
import { Agent, MemorySession, OpenAIResponsesModel, applyPatchTool, run as runAgent, setTracingDisabled } from "@openai/agents";
import { shellTool, tool, toolNamespace, toolSearchTool } from "@openai/agents";
import OpenAI from "openai";
import { MODEL, Place, URL, call, equal, getWeather, run } from "./checks.mjs";

setTracingDisabled(true);
const client = new OpenAI({ baseURL: `${URL}/v1`, apiKey: "none", maxRetries: 0 });
const model = new OpenAIResponsesModel(client, MODEL);

// The scripted model makes each call once it reads the word before it, and ends at the last word.
const script = (...steps) => steps.map(([after, said]) => `script${after && ` after ${after}`}: ${said}`).join("\n");

const ran = [];
const shell = shellTool({
  shell: {
    async run({ commands }) {
      ran.push(...commands);
      return { output: [{ stdout: "LISTED", stderr: "", outcome: { type: "exit", exitCode: 0 } }] };
    },
  },
});
const edit = async ({ path }) => (ran.push(path), { status: "completed", output: "PATCHED" });
const patch = applyPatchTool({ editor: { createFile: edit, updateFile: edit, deleteFile: edit } });
const deferred = (name) => tool({
  name,
  description: "Get the weather.",
  deferLoading: true,
  parameters: Place,
  execute: async (given) => (ran.push(name), getWeather(given)),
});

async function sessionOf(agent, turns, stream) {
  ran.length = 0;
  const session = new MemorySession();
  for (const [number, turn] of turns.entries()) {
    const ended = await runAgent(agent, `turn ${number}\n${turn}`, { session, stream });
    if (stream) await ended.completed;
    equal(ended.finalOutput, "done");
  }
}

async function clientTools(stream) {
  const agent = new Agent({ name: "worker", model, tools: [shell, patch] });
  const listing = script(["", call("shell", `{"commands": ["ls", "pwd"]}`)], ["LISTED", "say done"]);
  const operation = `{"type": "create_file", "path": "a.txt", "diff": "+a"}`;
  const patching = script(["", call("apply_patch", operation)], ["PATCHED", "say done"]);
  await sessionOf(agent, [listing, patching, listing], stream);
  equal(ran, ["ls", "pwd", "a.txt", "ls", "pwd"]);
}

async function toolSearch(stream) {
  const space = toolNamespace({ name: "sky", description: "What the sky does.", tools: [deferred("look_up")] });
  const agent = new Agent({ name: "worker", model, tools: [toolSearchTool({ execution: "client" }), deferred("ask"), ...space] });
  const turn = (path, name) => script(
    ["", call("tool_search", `{"paths": ["${path}"]}`)],
    ["<functions>", call(name, `{"city": "Paris"}`)],
    ["degrees", "say done"],
  );
  for (const found of [turn("ask", "ask"), turn("sky", "sky__look_up")]) await sessionOf(agent, [found], stream);
  equal(ran, ["look_up"]);
}

await run({
  "a session with a shell and patches": () => clientTools(false),
  "a streamed session with a shell and patches": () => clientTools(true),
  "a search for tools": () => toolSearch(false),
  "a streamed search for tools": () => toolSearch(true),
});
