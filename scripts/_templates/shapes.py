"""Conversations as agents and other servers write them, most of them described in shapes.toml. Each text has a word of
its own, which its prompt must have.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path


@dataclass(frozen=True)
class Call:
    """A call of a tool. `arguments` are text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Turn:
    """A message of any API. Tools' results have the id of their call."""

    role: str
    text: str = ""
    calls: tuple[Call, ...] = ()
    reasoning: str = ""
    id: str = ""
    has_image: bool = False


@dataclass(frozen=True)
class Shape:
    """A conversation, and the words that its prompt must have."""

    name: str
    turns: tuple[Turn, ...]
    words: tuple[str, ...]
    # Whether the answer continues the last message.
    continues: bool = False


class _Writer:
    """Writes the turns of one conversation. `words` has the word that each text of it has of its own."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self._numbers = count(1)
        # The last ones, to which results belong.
        self._calls: tuple[Call, ...] = ()

    def turn(self, word: str) -> Turn:
        """The turn that a word of the table stands for."""
        kind, *parts = word.split("+")
        match kind:
            case "system" | "developer":
                return Turn(kind, self._text("Be brief"))
            case "user" | "picture":
                return Turn("user", self._text("What about"), has_image=kind == "picture")
            case "answer":
                return Turn("assistant", self._text("It is"), reasoning=self._part("I think of", "thought" in parts))
            case "nothing":
                return Turn("assistant", "")
            case "lost" | "gone":
                return Turn("tool", self._text("21 degrees in"), id=f"call_{kind}")
        if kind.startswith("result"):
            return Turn("tool", self._text("21 degrees in"), id=self._calls[int(kind[6:] or 1) - 1].id)
        self._calls = tuple(self._call(parts) for _ in range(int(kind[5:] or 1)))
        thought, text = self._part("I look at", "thought" in parts), self._part("Let me see", "text" in parts)
        return Turn("assistant", text, self._calls, thought)

    def _text(self, beginning: str) -> str:
        """A text that ends in a new word."""
        self.words.append("word" + "".join("qwrtzpsdfg"[int(digit)] for digit in f"{len(self.words):03}"))
        return f"{beginning} {self.words[-1]}."

    def _part(self, text: str, is_wanted: bool) -> str:
        return self._text(text) if is_wanted else ""

    def _call(self, parts: list[str]) -> Call:
        given = dict(part.split("=", 1) for part in parts if "=" in part)
        number = next(self._numbers)
        arguments = given["arguments"] if "arguments" in given else json.dumps({"city": self._text("near")})
        return Call(given.get("id", f"call_{number:024}"), "get_weather", arguments)


def shapes() -> list[Shape]:
    """All conversations."""
    described = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    all_words: dict[str, Sequence[str]] = {name: words.split() for name, words in described.items()}
    all_words["ids of other servers"] = ["user", *(word for id in _IDS for word in (f"call+id={id}", "result"))]
    cut = (word for cut in _CUT for word in (f"call+arguments={cut}", "result"))
    all_words["calls cut off or without an object"] = ["user", *cut]
    all_words["an agent's ten turns"] = " ".join(_agent()).split()
    found = []
    for name, words in all_words.items():
        writer = _Writer()
        turns = tuple(map(writer.turn, words))
        found.append(Shape(name, turns, tuple(writer.words), continues=name == "an answer that is continued"))
    return found


def _agent() -> Iterator[str]:
    """Ten turns with reminders, text after results, parallel calls, a cancelled call and an answer cut off."""
    yield "system developer user user"
    for number in range(10):
        said = "+text" * (number % 2 == 0) + "+thought" * (number % 4 == 0)
        yield f"calls3{said} result result2 result3" if number % 3 == 0 else f"call{said} result"
        yield "system" * (number % 2)
        yield "user" * (number % 3 == 1)
        yield {5: "call user", 7: "answer user user"}.get(number, "")
    yield "system user"


_IDS = ("toolu_01A09q90qw90lq917835lq9", "chatcmpl-tool-3fa85f6457174562b3fc2c963f66afa6", "a", "Ab1Cd2Ef3", "f:0")
_CUT = ('{"city": "', "", "Paris", "[1, 2]", '{"city": NaN}', "null", '{"city": "Paris"}}')
