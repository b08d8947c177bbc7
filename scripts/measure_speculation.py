"""Measure what drafts of next tokens (GENAI_SPECULATION) do to the speed of one stream, or of several at once.

Four kinds of answers: a greedy one of few different tokens, which soon repeats itself; a greedy one with a
`prediction` that is right but for every tenth token; one at temperature 1.5, which repeats nothing; and a JSON object
whose schema leaves only the values open. Each round has every kind without drafts and with them, one right after the
other. Run it with the interpreter of `.venv`.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from statistics import median

from _models.engine_spec import engine_spec
from _models.table import table
from llguidance import LLMatcher
from msgspec import structs

from genai_server.engine.ipc.mailbox import Connected
from genai_server.engine.loop import EngineLoop
from genai_server.engine.process import IDLE_CHUNK
from genai_server.engine.profiling.folder import ProfileFolder
from genai_server.engine.profiling.runtime_options import RuntimeOptionState
from genai_server.engine.runners.choose import load_runners
from genai_server.engine.runners.runner_pair import RunnerPair
from genai_server.engine.sampling.grammar import Guidance, model_guidance
from genai_server.engine.scheduling.scheduler import Scheduler
from genai_server.engine.scheduling.scheduler_output import StepPolicy
from genai_server.messages.generation_request import GenerationRequest, Sampling
from genai_server.messages.protocol import Finished, Submit, ToApi, Tokens

PROMPT = 64
# Number of different tokens in the answer that repeats itself.
FEW = 16
# Properties of the object, each with a name of its own and a digit.
PROPERTIES = 16
API = 1
HEAD = ["answer", "off, tokens/s", "auto, tokens/s", "auto / off", "drafted", "accepted"]


class Engine:
    """An engine's loop in this process; each has its own scheduler, which learns what passes cost."""

    def __init__(self, runners: RunnerPair, guidance: Guidance, folder: Path, *, speculates: bool) -> None:
        scheduler = Scheduler(
            runners.main,
            max_running=runners.main.abilities.max_rows,
            max_waiting=0,
            prefill_chunk=IDLE_CHUNK,
            idle_chunk=IDLE_CHUNK,
            policy=StepPolicy(speculates=speculates),
        )
        options = RuntimeOptionState(runners, ProfileFolder(folder, "cpu", max_files=1, max_bytes=1))
        self._sent: list[ToApi] = []
        self._keys = count()
        self._loop = EngineLoop(runners, scheduler, options, guidance, lambda _, messages: self._sent.extend(messages))
        self._loop.inbox.put((API, Connected()))

    def answer(self, requests: list[GenerationRequest]) -> tuple[list[list[int]], float, list[Finished]]:
        """The answers' tokens, the tokens per second once each has its first, and their ends."""
        self._sent.clear()
        tokens: dict[int, list[int]] = {}
        for request in requests:
            tokens[key := next(self._keys)] = []
            self._loop.inbox.put((API, Submit(key, request)))
        ends: list[Finished] = []
        num_before, first = 0, 0.0
        while len(ends) < len(requests):
            self._loop.run_one_step()
            for message in self._sent:
                if isinstance(message, Tokens):
                    tokens[message.key] += message.tokens
                elif isinstance(message, Finished):
                    ends.append(message)
            self._sent.clear()
            if not first and all(tokens.values()):
                num_before, first = sum(map(len, tokens.values())), time.perf_counter()
        seconds = time.perf_counter() - first
        return list(tokens.values()), (sum(map(len, tokens.values())) - num_before) / seconds, ends


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model_dir", type=Path, nargs="?", default=Path("models/demo"), metavar="MODEL_DIR")
    parser.add_argument("--tokens", type=int, default=256, help="of each answer (256)")
    parser.add_argument("--clients", type=int, default=1, help="answers at once (1)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each median (5)")
    parser.add_argument("--cache", type=Path, help="keeps packed weights (a temporary folder)")
    parser.add_argument("--markdown", action="store_true", help="print the table as a document has it")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        spec = engine_spec(
            arguments.model_dir, arguments.clients, PROMPT + arguments.tokens, arguments.cache or Path(folder) / "cache"
        )
        spec = structs.replace(spec, settings=structs.replace(spec.settings, prefill_weights="auto"))
        runners = load_runners(spec)
        if not runners.main.abilities.drafts:
            parser.exit(1, f"{arguments.model_dir} cannot have drafts\n")
        guidance = model_guidance(arguments.model_dir, runners.main.model)
        off, auto = (Engine(runners, guidance, Path(folder), speculates=speculates) for speculates in (False, True))
        print(table([HEAD, *rows(off, auto, runners.main.model.vocab_size, arguments)], markdown=arguments.markdown))


def rows(off: Engine, auto: Engine, vocab_size: int, arguments: argparse.Namespace) -> Iterator[list[str]]:
    """A row of the table for each kind of answer."""
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

    answers, *_ = off.answer(requests(Sampling()))
    predictions = [
        [chance.randrange(vocab_size) if n % 10 == 9 else token for n, token in enumerate(tokens)] for tokens in answers
    ]
    asked = {
        "greedy, repeats itself": requests(Sampling(logit_bias=dict.fromkeys(prompts[0][:FEW], 100.0))),
        "greedy, nine tenths predicted": requests(Sampling(), predictions),
        "temperature 1.5": requests(Sampling(1.5)),
        "an object with 16 properties": requests(Sampling(), grammar=_object(chance)),
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in asked}
    drafts: dict[str, list[Finished]] = {}
    for _ in range(arguments.rounds):
        for name, each in asked.items():
            _, slow, _ = off.answer(each)
            _, fast, drafts[name] = auto.answer(each)
            found[name].append((slow, fast))
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
