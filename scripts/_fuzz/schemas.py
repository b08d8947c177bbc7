"""Draws answers that schemas allow, and reports which of them break their schema.

Each schema goes through the functions with which the server checks and follows it; its answers are drawn at random over
bytes and over the demo model's tokens. Nothing may end the process that follows a schema.

With `--files`, schemas are those of a folder, such as `data` of https://github.com/guidance-ai/jsonschemabench. With
`--best-effort` they are not strict: answers must fit what is left of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from _load.server import DEMO

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

# After which a process counts as held up.
_MAX_SECONDS = 120


@dataclass(frozen=True)
class Source:
    """Schemas by number, the same for the same seed."""

    seed: int
    # Answers drawn for each schema.
    walks: int
    # Files with a schema each; without files, schemas are drawn.
    files: tuple[Path, ...]
    # Whether they are not strict, and followed where possible.
    best_effort: bool
    # Whether schemas and answers are printed.
    shows: bool

    def schema(self, number: int) -> dict[str, Any]:
        """The schema of this number."""
        if not self.files:
            return drawn_schema(self.seed, number)
        found: dict[str, Any] = json.loads(self.files[number].read_text(encoding="utf-8"))
        return found


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
    shows = arguments.only is not None
    source = Source(arguments.seed, arguments.walks, tuple(files), arguments.best_effort, shows)
    answers = asyncio.run(_check_all(source, found, numbers, arguments.processes))
    found.figures += [[f"answers {kind}", f"{number}"] for kind, number in sorted(answers.items())]
    return found


async def _check_all(source: Source, found: Campaign, numbers: range, num_processes: int) -> Counter[str]:
    """Check the schemas with these numbers; returns the numbers of answers of each kind."""
    answers: Counter[str] = Counter()
    idle: list[ProcessPoolExecutor] = []

    async def attempt(number: int) -> Outcome:
        # Of one process each, because the library that follows schemas can end it.
        process = idle.pop() if idle else ProcessPoolExecutor(1, get_context("spawn"))
        try:
            outcome, drawn, left_out = await asyncio.get_running_loop().run_in_executor(process, _check, source, number)
        except BrokenProcessPool:
            return Outcome("taken", "", "a schema has ended or held up the process that followed it")
        idle.append(process)
        answers.update(drawn)
        found.results.update(("followed in part", f"without {keyword}") for keyword in left_out)
        return outcome

    await found.run(numbers, attempt, num_processes)
    for process in idle:
        process.shutdown()
    return answers


def _check(source: Source, number: int) -> tuple[Outcome, list[str], list[str]]:
    """What became of a schema, of which kind each of its answers is, and the keywords that they need not fit."""
    walkers = _walkers()
    schema = source.schema(number)
    if source.shows:
        print(json.dumps(schema), flush=True)
    started = time.monotonic()
    signal.alarm(_MAX_SECONDS)  # which ends the process, also within the library
    left_out: list[str] = []
    answers, broken = [], []
    try:
        if source.best_effort:
            schema, left_out = _followed(schema)
        built = _compiled(schema)
        chance = random.Random(f"walks {source.seed} {number}")
        for walk in range(source.walks):
            walker, manner = walkers[chance.random() < 0.3], MANNERS[walk % len(MANNERS)]
            try:
                answer = walker.answer(built, manner, chance)
                kind, wrong = _judged(schema, answer)
            except DeadEnd as end:
                answer, kind, wrong = None, "that nothing may follow", f"lets nothing follow {end}"
            if source.shows:
                print(answer, flush=True)
            answers.append(kind)
            if wrong is not None:
                broken.append(f"{json.dumps(schema)[:400]}\n  {wrong}")
        outcome = Outcome("taken", "", "\n".join(broken) or None, time.monotonic() - started)
    except InvalidField as error:
        outcome = Outcome("refused", _kind(error.message), None, time.monotonic() - started)
    finally:
        signal.alarm(0)
    return outcome, answers, left_out


def _judged(schema: dict[str, Any], answer: bytes | None) -> tuple[str, str | None]:
    """What kind of answer it is, and what is wrong with it."""
    if answer is None:
        return "without an end", None
    try:
        wrong = verdicts.complaint(schema, answer)
    except verdicts.Unjudged:
        return "that no validator can judge", None
    if wrong is None:
        return "that fit their schema", None
    return "that break their schema", f"gives {answer.decode(errors='replace')[:200]!r}: {wrong}"


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


@cache
def _walkers() -> tuple[Walker, Walker]:
    """One over bytes, and one over the demo model's tokens."""
    scripted = ScriptedRunner().model
    demo = model_info(json.loads((DEMO / "genai_config.json").read_text(encoding="utf-8")))
    return (
        Walker(bytes_guidance(scripted), ByteTokenizer(), scripted),
        Walker(model_guidance(DEMO, demo), ModelTokenizer(DEMO), demo),
    )
