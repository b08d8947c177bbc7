// The tool servers of the operator, whose tools this server runs for a chat that chooses them.
import { ask } from "./api.js";
import { Emitter } from "./emitter.js";

export const HEADER = "x-genai-run-tools";

class ToolServers extends Emitter {
  // Each with its id and its description.
  list = [];
  error = "";

  async load() {
    try {
      this.list = (await ask("v1/tool_servers")).data;
      this.error = "";
    } catch (error) {
      this.error = error.message;
    }
    this.changed();
  }
}

export const toolServers = new ToolServers();

// The names of the tool servers that a chat has chosen.
export function chosenServers({ tool_servers: names = "" }) {
  return names.split(",").filter(Boolean);
}

// Whether a call is one of a tool server, which waits for the reader's approval.
export function waitsForApproval(settings, { name }) {
  return chosenServers(settings).some((server) => name.startsWith(`${server}__`));
}

// The server and the tool of such a call.
export function partsOf({ name }) {
  const [server, ...rest] = name.split("__");
  return { server, tool: rest.join("__") };
}
