"""Measure what drafts of next tokens (GENAI_SPECULATION) do to the speed of one stream, or of several at once.

Four kinds of answers: a greedy one of few different tokens, which soon repeats itself; a greedy one with a
`prediction` that is right but for every tenth token; one at temperature 1.5, which repeats nothing; and a JSON object
whose schema leaves only the values open. Each round has every kind without drafts and with them, one right after the
other. Run it with the interpreter of `.venv`.

With a draft model (GENAI_DRAFT_MODEL), there is one kind more: a given text, of which the draft model drafts a given
share of tokens rightly. All passes are those of the real models. Only what they choose is replaced in this kind,
because models with random weights never agree.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from _models.engine_loop import Engine
from _models.engine_spec import engine_spec
from _models.table import table
from llguidance import LLMatcher
from msgspec import structs

from genai_server.engine import sequence as sequence_module
from genai_server.engine.process import IDLE_CHUNK
from genai_server.engine.runners.choose import load_runners
from genai_server.engine.runners.draft_model import DraftModel
from genai_server.engine.runners.scores import Logits, Scores
from genai_server.engine.runners.warm_up import warm_up
from genai_server.engine.sampling.grammar import model_guidance
from genai_server.engine.sampling.sampler import Sampler
from genai_server.engine.sequence import Sequence
from genai_server.messages.generation_request import GenerationRequest, Sampling
from genai_server.messages.protocol import Finished

PROMPT = 64
# Number of different tokens in the answer that repeats itself.
FEW = 16
# Properties of the object, each with a name of its own and a digit.
PROPERTIES = 16
HEAD = ["answer", "off, tokens/s", "auto, tokens/s", "auto / off", "drafted", "accepted"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model_dir", type=Path, nargs="?", default=Path("models/demo"), metavar="MODEL_DIR")
    parser.add_argument("--tokens", type=int, default=256, help="of each answer (256)")
    parser.add_argument("--clients", type=int, default=1, help="answers at once (1)")
    parser.add_argument("--draft-model", type=Path, metavar="DIR", help="that of GENAI_DRAFT_MODEL (none)")
    parser.add_argument(
        "--acceptance", type=float, default=0.7, metavar="SHARE", help="of its tokens, in the kind of its own (0.7)"
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each median (5)")
    parser.add_argument("--cache", type=Path, help="keeps packed weights (a temporary folder)")
    parser.add_argument("--markdown", action="store_true", help="print the table as a document has it")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        spec = engine_spec(
            arguments.model_dir, arguments.clients, PROMPT + arguments.tokens, arguments.cache or Path(folder) / "cache"
        )
        spec = structs.replace(spec, settings=structs.replace(spec.settings, prefill_weights="auto"))
        if arguments.draft_model:
            settings = structs.replace(spec.settings, speculation="auto")
            spec = structs.replace(spec, draft_model=str(arguments.draft_model), settings=settings)
        runners = load_runners(spec)
        if not runners.main.abilities.drafts:
            parser.exit(1, f"{arguments.model_dir} cannot have drafts\n")
        guidance = model_guidance(arguments.model_dir, runners.main.model)
        warm_up(runners, IDLE_CHUNK)
        TextSampler.texts = texts = Texts({}, arguments.acceptance)
        if runners.draft_model is not None:
            runners.draft_model = TextDrafts(runners.draft_model, texts)
            setattr(sequence_module, "Sampler", TextSampler)  # noqa: B010 - it is not a name that others import

        def engine(*, speculates: bool) -> Engine:
            return Engine(runners, guidance, Path(folder), speculates=speculates)

        found = rows(engine, runners.main.model.vocab_size, texts, arguments)
        print(table([HEAD, *found], markdown=arguments.markdown))


@dataclass
class Texts:
    """Texts that are the answers to some prompts, whatever the models choose."""

    of_prompts: dict[tuple[int, ...], list[int]]
    # The share of a draft's tokens that are those of the text.
    share: float

    def following(self, tokens: list[int]) -> int | None:
        """The token of the text behind a prompt and a part of the answer; None if there is no text."""
        text = self.of_prompts.get(tuple(tokens[:PROMPT]), [])
        return text[len(tokens) - PROMPT] if len(tokens) - PROMPT < len(text) else None


class TextSampler(Sampler):
    """Takes as long as any sampler, and chooses the tokens of a text."""

    texts: Texts

    def __init__(self, sampling: Sampling, prompt: list[int]) -> None:
        super().__init__(sampling, prompt)
        self._tokens = list(prompt)

    def sample(self, logits: Logits, **how: Any) -> int:
        token = super().sample(logits, **how)
        following = self.texts.following(self._tokens)
        self._tokens.append(token if following is None else following)
        return self._tokens[-1]


class TextDrafts(DraftModel):
    """Drafts a share of a text's tokens rightly."""

    def __init__(self, model: DraftModel, texts: Texts) -> None:
        super().__init__(model.runner, model.runner.model.vocab_size, name=model.name, kv_share=model.kv_share)
        self._texts, self._chance = texts, random.Random(6)
        self.times = model.times

    def best_token(self, copy: Sequence, scores: Scores) -> int:
        own, following = super().best_token(copy, scores), self._texts.following(copy.tokens)
        if following is None:
            return own
        return following if self._chance.random() < self._texts.share else following - 1


def rows(
    engine: Callable[..., Engine], vocab_size: int, texts: Texts, arguments: argparse.Namespace
) -> Iterator[list[str]]:
    """A row of the table for each kind of answer. Each kind has an engine of its own, which learns what it accepts."""
    chance = random.Random(5)
    known = range(min(100, vocab_size // 2), vocab_size)
    prompts = [chance.choices(known, k=PROMPT) for _ in range(arguments.clients)]

    def requests(
        sampling: Sampling, predictions: list[list[int]] | None = None, grammar: str | None = None
    ) -> list[GenerationRequest]:
        return [
            GenerationRequest(
                "measured",
                prompt,
                arguments.tokens,
                PROMPT + arguments.tokens,
                sampling,
                ignore_eos=True,
                cache_prompt=False,
                prediction=predictions[number] if predictions else [],
                grammar=grammar,
            )
            for number, prompt in enumerate(prompts)
        ]

    off = engine(speculates=False)
    answers = off.answer(requests(Sampling())).tokens
    predictions = [
        [chance.randrange(vocab_size) if n % 10 == 9 else token for n, token in enumerate(tokens)] for tokens in answers
    ]
    asked = {
        "greedy, repeats itself": requests(Sampling(logit_bias=dict.fromkeys(prompts[0][:FEW], 100.0))),
        "greedy, nine tenths predicted": requests(Sampling(), predictions),
        "temperature 1.5": requests(Sampling(1.5)),
        "an object with 16 properties": requests(Sampling(), grammar=_object(chance)),
    }
    by_model = f"a text, {arguments.acceptance:g} of it drafted rightly"
    if arguments.draft_model:
        asked[by_model] = requests(Sampling())
    written = {tuple(prompt): chance.choices(known, k=arguments.tokens) for prompt in prompts}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in asked}
    drafts: dict[str, list[Finished]] = {}
    auto = {name: engine(speculates=True) for name in asked}
    for _ in range(arguments.rounds):
        for name, each in asked.items():
            texts.of_prompts = written if name == by_model else {}
            slow, fast = off.answer(each), auto[name].answer(each)
            found[name].append((slow.per_second, fast.per_second))
            drafts[name] = fast.ends
    for name, pairs in found.items():
        slow, fast = (median(values) for values in zip(*pairs, strict=True))
        ratio = median(fast / slow for slow, fast in pairs)
        drafted, accepted = (
            sum(getattr(end, part) for end in drafts[name]) for part in ("num_drafted", "num_accepted")
        )
        yield [name, f"{slow:.1f}", f"{fast:.1f}", f"{ratio:.2f}", str(drafted), str(accepted)]


def _object(chance: random.Random) -> str:
    """The grammar of an object whose properties have names of random letters."""
    names = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=8)) for _ in range(PROPERTIES)]
    digit = {"type": "integer", "minimum": 0, "maximum": 9}
    schema = {"type": "object", "properties": dict.fromkeys(names, digit), "required": names}
    return LLMatcher.grammar_from_json_schema(
        {**schema, "additionalProperties": False, "x-guidance": {"whitespace_flexible": False}}
    )


if __name__ == "__main__":
    main()
