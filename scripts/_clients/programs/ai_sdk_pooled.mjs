// Embeddings and reranking with Vercel's AI SDK.
import { createCohere } from "@ai-sdk/cohere";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { cosineSimilarity, embed, embedMany, rerank } from "ai";
import { ABOUT, QUESTION, URL, equal, run } from "./checks.mjs";

const model = createOpenAICompatible({ name: "genai", baseURL: `${URL}/v1`, apiKey: "none" }).embeddingModel("vectors");
const scores = createCohere({ baseURL: `${URL}/v2`, apiKey: "none" }).reranking("scores");
const given = { maxRetries: 0 };

await run({
  "embed, embedMany": async () => {
    const { embedding } = await embed({ model, value: QUESTION, ...given });
    const { embeddings } = await embedMany({ model, values: ABOUT, ...given });
    const near = embeddings.map((each) => cosineSimilarity(embedding, each));
    equal(near.indexOf(Math.max(...near)), 0);
  },
  "rerank as Cohere": async () => {
    const { ranking } = await rerank({ model: scores, query: QUESTION, documents: ABOUT, topN: 2, ...given });
    equal(ranking.length, 2);
    equal(ranking[0].document, ABOUT[0]);
  },
});
