"""Draws answers that schemas allow, and reports which of them break their schema.

Each schema goes through the functions with which the server checks and follows it; its answers are drawn at random over
bytes and over the demo model's tokens. Nothing may end the process that follows a schema.

With `--files`, schemas are those of a folder, such as `data` of https://github.com/guidance-ai/jsonschemabench. With
`--best-effort` they are not strict: answers must fit what is left of them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from threading import Lock
from typing import Any

from genai_server.engine.model.files import model_info
from genai_server.engine.runners.scripted import ScriptedRunner
from genai_server.engine.sampling.grammar import bytes_guidance, model_guidance
from genai_server.errors import InvalidField
from genai_server.grammar_checker.compiler import complaint
from genai_server.text.grammars import grammar
from genai_server.text.grammars.json_schema import EVERYTHING, any_value, relaxed
from genai_server.text.tokenizer import ByteTokenizer, ModelTokenizer

from . import verdicts
from .campaign import Campaign, Outcome
from .drawn import drawn_schema
from .walks import MANNERS, DeadEnd, Walker

DEMO = Path(__file__).resolve().parents[2] / "models" / "demo"
# After which a process counts as held up.
_MAX_SECONDS = 120.0


@dataclass(frozen=True)
class Source:
    """Schemas by number, the same for the same seed."""

    seed: int
    # Answers drawn for each schema.
    walks: int
    # Files with a schema each; without files, schemas are drawn.
    files: tuple[Path, ...] = ()
    # Whether they are not strict, and followed where possible.
    best_effort: bool = False

    def schema(self, number: int) -> dict[str, Any]:
        """The schema of this number."""
        if not self.files:
            return drawn_schema(self.seed, number)
        found: dict[str, Any] = json.loads(self.files[number].read_text(encoding="utf-8"))
        return found


@dataclass
class Checked:
    """The result of one schema: why it was refused, or its answers and which of them break it."""

    number: int
    refusal: str | None = None
    # Keywords that the answers need not fit.
    left_out: list[str] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    broken: list[str] = field(default_factory=list)


class Checker:
    """Checks the schemas of one source."""

    def __init__(self, source: Source, *, shows: bool = False) -> None:
        self._source = source
        self._shows = shows
        self._walkers = [_over_bytes(), _over_tokens()]

    def check(self, number: int) -> Checked:
        """The schema of this number."""
        schema, checked = self._source.schema(number), Checked(number)
        started = time.monotonic()
        try:
            if self._source.best_effort:
                schema, checked.left_out = _followed(schema)
            built = _compiled(schema)
            for walker in self._walkers:
                walker.compiled(built)
            self._draw(schema, built, checked)
        except InvalidField as error:
            checked.refusal = _kind(error.message)
        checked.seconds = time.monotonic() - started
        return checked

    def _draw(self, schema: dict[str, object], built: str, checked: Checked) -> None:
        chance = random.Random(f"walks {self._source.seed} {checked.number}")
        for walk in range(self._source.walks):
            manner = MANNERS[walk % len(MANNERS)]
            try:
                answer = self._walkers[chance.random() < 0.3].answer(built, manner, chance)
            except DeadEnd as end:
                checked.broken.append(f"{json.dumps(schema)[:400]}\n  lets nothing follow {end}")
                continue
            if self._shows:
                print(answer)
            if answer is None:
                checked.answers["without an end"] += 1
                continue
            try:
                wrong = verdicts.complaint(schema, answer)
            except verdicts.Unjudged:
                checked.answers["that no validator can judge"] += 1
                continue
            checked.answers["that break their schema" if wrong else "that fit their schema"] += 1
            if wrong is not None:
                text = answer.decode(errors="replace")[:200]
                checked.broken.append(f"{json.dumps(schema)[:400]}\n  gives {text!r}: {wrong}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of this target."""
    parser.add_argument("--walks", type=int, default=6, help="answers drawn for each schema (6)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--files", type=Path, metavar="FOLDER", help="a sample of its .json files instead")
    parser.add_argument("--best-effort", action="store_true", help="leave out what cannot be followed")


def run(arguments: argparse.Namespace, numbers: range) -> Campaign:
    """Check the schemas with these numbers."""
    found = Campaign(arguments.seed)
    files: list[Path] = []
    if arguments.files:
        known = sorted(arguments.files.rglob("*.json"))
        files = random.Random(arguments.seed).sample(known, min(arguments.count, len(known)))
        numbers = range(numbers.start, min(numbers.stop, len(files)))
    source = Source(arguments.seed, arguments.walks, tuple(files), arguments.best_effort)
    answers: Counter[str] = Counter()

    def add(checked: Checked) -> None:
        kind = "taken" if checked.refusal is None else "refused"
        found.add(checked.number, Outcome(kind, checked.refusal or ""), checked.seconds)
        for keyword in checked.left_out:
            found.results["followed in part", f"without {keyword}"] += 1
        answers.update(checked.answers)
        found.failures += [(checked.number, what) for what in checked.broken]

    if arguments.only is not None:
        print(json.dumps(source.schema(arguments.only)))
        add(Checker(source, shows=True).check(arguments.only))
    else:
        died = check_all(numbers, source, arguments.processes, add)
        found.failures += [(number, "a schema has ended or held up the process that followed it") for number in died]
    found.figures += [[f"answers {kind}", f"{number}"] for kind, number in sorted(answers.items())]
    return found


def check_all(numbers: range, source: Source, processes: int, add: Callable[[Checked], None]) -> list[int]:
    """Check the schemas with these numbers; returns those whose process died or hung, and was replaced."""
    died: list[int] = []
    lock = Lock()

    def check_share(share: Sequence[int]) -> None:
        for found in _checked(share, source):
            with lock:
                died.append(found) if isinstance(found, int) else add(found)

    shares = [share for start in range(processes) if (share := numbers[start::processes])]
    with ThreadPoolExecutor(processes) as threads:
        list(threads.map(check_share, shares))
    return died


def _checked(share: Sequence[int], source: Source) -> Iterator[Checked | int]:
    """The result of each schema, or its number if it has ended or held up the process that followed it. The library
    that follows schemas can do both.
    """
    left = list(share)
    while left:
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            id = process.submit(os.getpid).result()
            while left:
                number = left.pop(0)
                try:
                    yield process.submit(_check, source, number).result(_MAX_SECONDS)
                except (BrokenProcessPool, TimeoutError):
                    with suppress(ProcessLookupError):
                        os.kill(id, signal.SIGKILL)
                    yield number
                    break


@cache
def _checker(source: Source) -> Checker:
    return Checker(source)


def _check(source: Source, number: int) -> Checked:
    return _checker(source).check(number)


def _followed(schema: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The schema that answers to a schema that is not strict must match, and the keywords left out."""
    found, left_out = relaxed(schema)
    try:
        _compiled(found)
    except InvalidField:
        return any_value(schema), [EVERYTHING]
    return found, left_out


def _compiled(schema: dict[str, Any]) -> str:
    """A schema's grammar. Raises InvalidField if the server refuses it."""
    built = grammar.json_schema(schema)
    grammar.check_size(built, param="response_format")
    if (words := complaint(built)) is not None:
        raise InvalidField("response_format", words)
    return built


def _kind(message: str) -> str:
    """A refusal without its specifics, so that similar ones are counted together."""
    return re.sub(r"-?\d[\d.e+-]*|'[^']*'|\"[^\"]*\"|/.*/|\(.*\)", "…", message.splitlines()[0])[:160]


def _over_bytes() -> Walker:
    model = ScriptedRunner().model
    tokenizer = ByteTokenizer()
    return Walker(
        bytes_guidance(model), [tokenizer.token_bytes(id) for id in range(model.vocab_size)], model.eos_token_ids
    )


def _over_tokens() -> Walker:
    model = model_info(json.loads((DEMO / "genai_config.json").read_text(encoding="utf-8")))
    tokenizer = ModelTokenizer(DEMO)
    texts = [tokenizer.token_bytes(id) for id in range(model.vocab_size)]
    return Walker(model_guidance(DEMO, model), texts, model.eos_token_ids)
