// What openapi-typescript has generated, used by openapi-fetch: tsc checks the types of requests, answers and errors.
import createClient from "openapi-fetch";
// @ts-ignore has no types
import { equal, run } from "./checks.mjs";
import type { components, paths } from "./schema.d.ts";

const client = createClient<paths>({ baseUrl: process.env.CHECKED_URL! });
const messages = [{ role: "user" as const, content: "say hello" }];

await run({
  "/v1/chat/completions": async () => {
    const { data } = await client.POST("/v1/chat/completions", { body: { messages } });
    const answer = data as { choices: { message: { content: string } }[] };
    equal(answer.choices[0].message.content, "hello");
  },
  "a stream of it": async () => {
    const { data } = await client.POST("/v1/chat/completions", { body: { messages, stream: true }, parseAs: "text" });
    const text: string = data as string;
    equal(text.split("chat.completion.chunk").length > 5, true);
  },
  "a typed answer": async () => {
    const { data } = await client.POST("/tokenize", { body: { prompt: "abc" } });
    const count: number | undefined = data?.count;
    equal(count, 3);
  },
  "a typed error": async () => {
    const { error } = await client.POST("/tokenize", { body: {} });
    const detail = error as components["schemas"]["ErrorResponse"] | undefined;
    equal(detail?.error.type, "invalid_request_error");
  },
});
