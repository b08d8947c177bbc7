"""One schema as the server treats it, and answers to it."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from genai_server.engine.model.files import model_info
from genai_server.engine.runners.scripted import ScriptedRunner
from genai_server.engine.sampling.grammar import bytes_guidance, model_guidance
from genai_server.errors import InvalidField
from genai_server.grammar_checker.compiler import complaint
from genai_server.text.grammars import grammar
from genai_server.text.grammars.schema_relaxed import EVERYTHING, any_value, relaxed
from genai_server.text.tokenizer import ByteTokenizer, ModelTokenizer

from .source import Source
from .verdicts import Judge, Unjudged
from .walks import MANNERS, DeadEnd, Walker

DEMO = Path(__file__).resolve().parents[2] / "models" / "demo"


@dataclass
class Checked:
    """The result of one schema: why it was refused, or its answers and which of them break it."""

    number: int
    refusal: str | None = None
    # Keywords that the answers need not fit.
    left_out: list[str] = field(default_factory=list)
    answers: int = 0
    unended: int = 0
    unjudged: int = 0
    seconds: float = 0.0
    broken: list[str] = field(default_factory=list)


class Checker:
    """Checks the schemas of one source. `tell` is called with each answer."""

    def __init__(self, source: Source, walks: int, tell: Callable[[object], object] = str) -> None:
        self._source = source
        self._walks = walks
        self._tell = tell
        self._judge = Judge()
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
        for walk in range(self._walks):
            manner = MANNERS[walk % len(MANNERS)]
            try:
                answer = self._walkers[chance.random() < 0.3].answer(built, manner, chance)
            except DeadEnd as end:
                checked.broken.append(f"{json.dumps(schema)[:400]}\n  lets nothing follow {end}")
                continue
            self._tell(answer)
            if answer is None:
                checked.unended += 1
                continue
            checked.answers += 1
            try:
                complaint = self._judge.complaint(schema, answer)
            except Unjudged:
                checked.unjudged += 1
                continue
            if complaint is not None:
                text = answer.decode(errors="replace")[:200]
                checked.broken.append(f"{json.dumps(schema)[:400]}\n  gives {text!r}: {complaint}")


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
