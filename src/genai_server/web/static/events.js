// The data of a stream of server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html).
import { connection } from "./connection.js";

// Throws Unreachable if the stream breaks off.
export async function* events(response, signal) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read().catch((error) => { throw connection.failure(error, signal); });
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (line.startsWith("data: ") && line !== "data: [DONE]") yield JSON.parse(line.slice(6));
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
