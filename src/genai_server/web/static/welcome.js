// What a reader without a chat sees: examples to begin with, and what a toy model is for.
import { useChanges } from "./emitter.js";
import { bytes } from "./figures.js";
import { html, useEffect } from "./html.js";
import { isToy, models, readsImages } from "./models.js";
import { server } from "./server.js";

// What the demo model can answer, and what a real one can.
const FOR_TOYS = ["What is the capital of France?", "What is 7 plus 5?", "Count from 1 to 10."];
const FOR_OTHERS = [
  "Explain recursion with a short example in Python.",
  "Write a friendly reply that declines a meeting on Friday.",
  "What should I check before I buy a used bicycle?",
];
const COMMAND = "genai-server run phi4-mini";

export function Welcome({ onAsk }) {
  useChanges(models, server);
  const { chosen } = models;
  useEffect(() => { if (chosen && !models.hasDetails(chosen)) models.loadDetails(); }, [chosen?.id]);
  const isSmall = isToy(chosen);
  const examples = !isSmall ? FOR_OTHERS : readsImages(chosen) ? [] : FOR_TOYS;
  return html`<div class="welcome"><h1>What would you like to know?</h1>
    ${chosen && models.areDetailsKnown && html`<div class="examples">${examples.map((text) => html`<button type="button" key=${text}
      onClick=${() => onAsk(text)}>${text}</button>`)}</div>`}
    ${isSmall && html`<${Toy} model=${chosen} isAnswering=${examples.length > 0} />`}
    <p class="soft">Chats stay in this browser. They are sent only to this server.</p></div>`;
}

function Toy({ model, isAnswering }) {
  useEffect(() => { if (server.isAdmin === null) server.findRights(); }, []);
  return html`<p class="notice">${model.id} is a toy of ${bytes(models.details(model).size_bytes)} to try the server with.
    It answers ${isAnswering ? "questions like these" : "simple questions"} and little else.
    ${" "}For real answers, ${server.isAdmin ? html`<a href="#monitor/models">get a real model</a>.` : html`run <code>${COMMAND}</code>.`}</p>`;
}
