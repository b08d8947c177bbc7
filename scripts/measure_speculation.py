"""Measure what drafts of next tokens (GENAI_SPECULATION, GENAI_DRAFT_MEMORY_BYTES) do to the speed of answers.

Each round has every kind of answer without drafts ("off"), with drafts from its own text ("own text"), and with drafts
from earlier answers of the same key, too ("memory"), one right after the other, in changing order. The memory is full
of other answers.

Answers that the model chooses: a greedy one of few different tokens, which soon repeats itself; a greedy one with a
`prediction` that is right but for every tenth token; one at temperature 1.5, which repeats nothing; and a JSON object
whose schema leaves only the values open.

Answers that are dictated, so that they are the same with and without drafts: passes take the model's time, then the
logits are changed so that the next token of a text is chosen. An edited file, which after every 64 tokens on average
has two other tokens, two new ones, or lacks two; the file itself was an earlier answer, or is in the
prompt. Random tokens of the complete vocabulary, and of 16 tokens, where matches are frequent and wrong.

With a draft model (GENAI_DRAFT_MODEL), or the model's own head for multi-token prediction (--head), there is one kind
more: a dictated text, of which it drafts a given share of tokens rightly, because models with random weights never
agree. All passes are those of the real models.

On a machine that other programs keep busy only --processor-time says anything. Run it with the interpreter of `.venv`.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections import abc
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np
from _models.arguments import numbers
from _models.driven import engine_spec
from _models.engine_loop import Answered, Engine
from _models.table import table
from llguidance import LLMatcher
from msgspec import structs

from genai_server.engine.runners.base import Runner
from genai_server.engine.runners.draft_model import DraftModel
from genai_server.engine.runners.load_model import load_model
from genai_server.engine.runners.loaded_model import time_passes, warm_up
from genai_server.engine.runners.sequence_limits import IDLE_CHUNK
from genai_server.engine.sampling.grammar import model_guidance
from genai_server.engine.scheduling.drafts import AnswerMemory
from genai_server.engine.scheduling.scheduler_output import ScheduledChunk
from genai_server.engine.scheduling.step_time import StepTimeModel
from genai_server.engine.scores import Scores
from genai_server.engine.sequence import Sequence
from genai_server.messages.generation_request import GenerationRequest, Sampling
from genai_server.text.tokenizer import ModelTokenizer

PROMPT = 64
# Number of different tokens in the answer that repeats itself, and in the random one of few tokens.
FEW = 16
# Properties of the object, each with a name of its own and a digit.
PROPERTIES = 16
# Mean number of tokens between two edits of a file.
UNEDITED = 64
# Other answers in the memory, and the tokens of each.
OTHERS, OTHER_TOKENS = 200, 500
KEY = "key"
# The kind of answers of which a draft model drafts a given share rightly.
BY_MODEL = "a text that the draft model knows"
HEAD = [
    *("answer", "clients", "off, tokens/s", "own text / off", "memory / off", "memory / off, least"),
    *("drafted", "accepted"),
]
SOURCES = Path(__file__).parents[1] / "src" / "genai_server"


@dataclass(frozen=True)
class Asked:
    """Requests that are sent at once, and the earlier answers of the same key."""

    requests: list[GenerationRequest]
    # By request, a text that it gets as its answer.
    dictated: dict[str, list[int]] = field(default_factory=dict)
    earlier: list[list[int]] = field(default_factory=list)


class Dictation:
    """Takes the place of a runner's `forward`, and has texts chosen in place of what the model would choose."""

    def __init__(self, runner: Runner) -> None:
        self._forward = runner.forward
        # By the names of requests.
        self.texts: dict[str, list[int]] = {}

    def forward(self, chunks: abc.Sequence[ScheduledChunk]) -> list[Scores]:
        """Run the pass, and raise the logits of the texts' next tokens."""
        found = self._forward(chunks)
        for read, scores in zip(chunks, found, strict=True):
            text = self.texts.get(read.sequence.request.request_id)
            if text is None:
                continue
            first = read.sequence.num_produced
            for row, token in zip(scores.logits, text[first:], strict=False):
                row[token] = np.float32(1e4)
        return found


class DictatedDrafts:
    """Has a draft model or a head draft a share of a dictated text's tokens rightly, in the time that it takes."""

    def __init__(self, model: DraftModel, share: float) -> None:
        # By the names of requests.
        self.texts: dict[str, list[int]] = {}
        self._model, self._propose, self._best_tokens = model, model.propose, model.best_tokens
        self._wanted: dict[int, Sequence] = {}
        self._share, self._chance = share, random.Random(6)
        model.propose, model.best_tokens = self.propose, self.best_tokens  # type: ignore[method-assign]

    def propose(
        self, wanted: abc.Sequence[tuple[Sequence, int]], to_read: abc.Sequence[tuple[Sequence, int]]
    ) -> list[list[int]]:
        """As the model's own."""
        self._wanted = {sequence.id: sequence for sequence, _ in wanted}
        return self._propose(wanted, to_read)

    def best_tokens(self, copy: Sequence, scores: Scores) -> list[int]:
        """The tokens that are drafted."""
        own, sequence = self._best_tokens(copy, scores), self._wanted[copy.id]
        text = self.texts.get(sequence.request.request_id, [])
        first = sequence.num_produced + len(copy.tokens) - len(self._model.tokens_of(sequence))
        known = text[first : first + len(own)]
        drafted = [token if self._chance.random() < self._share else token - 1 for token in known]
        return drafted + own[len(known) :]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model_dir", type=Path, nargs="?", default=Path("models/demo"), metavar="MODEL_DIR")
    parser.add_argument("--tokens", type=int, default=256, help="of each answer (256)")
    parser.add_argument("--clients", type=numbers, default=(1,), metavar="N,N…", help="answers at once (1)")
    parser.add_argument("--draft-model", type=Path, metavar="DIR", help="that of GENAI_DRAFT_MODEL (none)")
    parser.add_argument("--head", action="store_true", help="draft with the model's head for multi-token prediction")
    parser.add_argument(
        "--acceptance", type=float, default=0.7, metavar="SHARE", help="of its tokens, in the kind of its own (0.7)"
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each median (5)")
    parser.add_argument("--only", default="", metavar="TEXT", help="kinds of answers with this in their names (all)")
    parser.add_argument("--processor-time", action="store_true", help="count processor time instead, also for drafts")
    parser.add_argument("--markdown", action="store_true", help="print the table as a document has it")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        longest = PROMPT + 3 * arguments.tokens
        spec = engine_spec(arguments.model_dir, max(arguments.clients), longest, Path(folder) / "cache")
        if arguments.draft_model or arguments.head:
            spec = structs.replace(spec, draft_model=str(arguments.draft_model or ""), speculation="auto")
        loaded = load_model(spec)
        if not loaded.main.abilities.drafts:
            parser.exit(1, f"{arguments.model_dir} cannot have drafts\n")
        guidance = model_guidance(arguments.model_dir, loaded.main.model)
        warm_up(loaded, IDLE_CHUNK)
        clock = time.process_time if arguments.processor_time else time.perf_counter
        if (model := loaded.draft_model) is not None:
            time_passes(model.runner, IDLE_CHUNK, clock=clock)
            model.clock, model.times = (
                clock,
                StepTimeModel(model.runner.abilities.tried_passes, model.runner.abilities.tried_prompt_token),
            )
            model.runner.forget()
        drafts = None if model is None else DictatedDrafts(model, arguments.acceptance)
        dictation, memory = Dictation(loaded.main), AnswerMemory(32 * 1024 * 1024)
        loaded.main.forward = dictation.forward  # type: ignore[method-assign]
        engines = [
            Engine(loaded, guidance, Path(folder), speculates=speculates, answers=answers, clock=clock)
            for speculates, answers in ((False, None), (True, None), (True, memory))
        ]
        lines = (
            row
            for number in arguments.clients
            for row in rows(engines, dictation, drafts, memory, number, loaded.main.model.vocab_size, arguments)
        )
        print(table([HEAD, *lines], markdown=arguments.markdown))


def rows(
    engines: list[Engine],
    dictation: Dictation,
    drafts: DictatedDrafts | None,
    memory: AnswerMemory,
    num_clients: int,
    vocab_size: int,
    arguments: argparse.Namespace,
) -> Iterator[list[str]]:
    """A row of the table for each kind of answer."""
    asked = kinds(engines[0], num_clients, vocab_size, arguments)
    chance = random.Random(9)
    others = [chance.choices(range(vocab_size), k=OTHER_TOKENS) for _ in range(OTHERS)]
    found: dict[str, list[list[float]]] = {name: [] for name in asked}
    last: dict[str, Answered] = {}
    for number in range(arguments.rounds):
        for name, each in asked.items():
            dictation.texts = each.dictated
            if drafts is not None:
                drafts.texts = each.dictated if name == BY_MODEL else {}
            memory.clear()
            for answer in (*others, *each.earlier):
                memory.add(KEY, [0], answer)
            # Each comes first, second, and last in turn: the machine may become slower.
            order = sorted(range(len(engines)), key=lambda place: (place + number) % len(engines))
            answered = {place: engines[place].answer(each.requests) for place in order}
            answers = [answered[place] for place in range(len(engines))]
            dictation.texts = {}
            last[name] = answers[-1]
            found[name].append(
                [answer.per_cpu_second if arguments.processor_time else answer.per_second for answer in answers]
            )
    for name, rates in found.items():
        ratios = [median(rate[number] / rate[0] for rate in rates) for number in (1, 2)]
        least = min(rate[2] / rate[0] for rate in rates)
        yield [
            *(name, str(num_clients), f"{median(rate[0] for rate in rates):.1f}"),
            *(f"{ratio:.2f}" for ratio in (*ratios, least)),
            str(sum(end.num_drafted for end in last[name].ends)),
            str(sum(end.num_accepted for end in last[name].ends)),
        ]


def kinds(off: Engine, num_clients: int, vocab_size: int, arguments: argparse.Namespace) -> dict[str, Asked]:
    """What is asked, by its name in the table."""
    chance = random.Random(5)
    known = range(min(100, vocab_size // 2), vocab_size)
    prompts = [chance.choices(known, k=PROMPT) for _ in range(num_clients)]

    def asked(
        sampling: Sampling,
        *,
        predictions: list[list[int]] | None = None,
        grammar: str | None = None,
        texts: list[list[int]] | None = None,
        earlier: list[list[int]] | None = None,
        files: list[list[int]] | None = None,
    ) -> Asked:
        requests = [
            GenerationRequest(
                f"measured {number}",
                [*prompt, *(files[number] if files else [])],
                arguments.tokens,
                PROMPT + 3 * arguments.tokens,
                sampling,
                ignore_eos=True,
                prediction=predictions[number] if predictions else [],
                grammar=grammar,
                answer_memory=KEY,
            )
            for number, prompt in enumerate(prompts)
        ]
        dictated = {request.request_id: text for request, text in zip(requests, texts or [], strict=False)}
        return Asked(requests, dictated, earlier or [])

    def random_texts(tokens: abc.Sequence[int]) -> list[list[int]]:
        return [chance.choices(tokens, k=arguments.tokens) for _ in range(num_clients)]

    answers = off.answer(asked(Sampling()).requests).tokens
    predictions = [
        [chance.randrange(vocab_size) if n % 10 == 9 else token for n, token in enumerate(tokens)] for tokens in answers
    ]
    files = _files(arguments.model_dir, num_clients, 2 * arguments.tokens)
    edited = [_edited(file, chance, known)[: arguments.tokens] for file in files]
    few = chance.sample(known, FEW)
    found = {
        "greedy, repeats itself": asked(Sampling(logit_bias=dict.fromkeys(prompts[0][:FEW], 100.0))),
        "greedy, nine tenths predicted": asked(Sampling(), predictions=predictions),
        "temperature 1.5": asked(Sampling(1.5)),
        "an object with 16 properties": asked(Sampling(), grammar=_object(chance)),
        "edit of an earlier answer": asked(Sampling(), texts=edited, earlier=files),
        "edit of a file in the prompt": asked(Sampling(), texts=edited, files=files),
        "random tokens": asked(Sampling(), texts=random_texts(known), earlier=random_texts(known)),
        "random, of 16 tokens": asked(Sampling(), texts=random_texts(few), earlier=random_texts(few)),
    }
    if arguments.draft_model or arguments.head:
        found[BY_MODEL] = asked(Sampling(), texts=random_texts(known))
    return {name: each for name, each in found.items() if arguments.only in name}


def _files(model_dir: Path, number: int, num_tokens: int) -> list[list[int]]:
    """The beginnings of this number of Python files, in tokens."""
    tokenizer = ModelTokenizer(model_dir)
    texts = (path.read_text(encoding="utf-8") for path in sorted(SOURCES.glob("engine/**/*.py")))
    encoded = (tokenizer.encode(text) for text in texts)
    long = [tokens[:num_tokens] for tokens in encoded if len(tokens) >= num_tokens]
    return [long[place % len(long)] for place in range(number)]


def _edited(file: list[int], chance: random.Random, known: abc.Sequence[int]) -> list[int]:
    """The file with other tokens at some places: replaced, deleted, or new."""
    found: list[int] = []
    place = 0
    while place < len(file):
        end = place + max(1, round(chance.expovariate(1 / UNEDITED)))
        found += file[place:end]
        kind = chance.choice(("replaced", "deleted", "new"))
        found += [] if kind == "deleted" else chance.choices(known, k=2)
        place = end + (0 if kind == "new" else 2)
    return found


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
