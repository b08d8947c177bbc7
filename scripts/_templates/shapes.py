"""Conversations as agents and other servers write them. Each text has a word of its own, which its prompt must have."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count


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


class _Words:
    """Makes up texts, each with a word of its own."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._numbers = count()

    def __call__(self, text: str) -> str:
        number = next(self._numbers)
        word = "word" + "".join("qwrtzpsdfg"[int(digit)] for digit in f"{number:03}")
        self.all.append(word)
        return f"{text} {word}."


class _Writer:
    """Writes the turns of one conversation."""

    def __init__(self) -> None:
        self.text = _Words()
        self._numbers = count(1)
        # The last ones, to which results belong.
        self._calls: tuple[Call, ...] = ()

    def turn(self, word: str) -> Turn:
        """The turn that a word of the table stands for."""
        kind, *parts = word.split("+")
        match kind:
            case "system" | "developer":
                return Turn(kind, self.text("Be brief"))
            case "user" | "picture":
                return Turn("user", self.text("What about"), has_image=kind == "picture")
            case "answer":
                return Turn("assistant", self.text("It is"), reasoning=self._part("I think of", "thought" in parts))
            case "nothing":
                return Turn("assistant", "")
            case "lost" | "gone":
                return Turn("tool", self.text("21 degrees in"), id=f"call_{kind}")
        if kind.startswith("result"):
            return Turn("tool", self.text("21 degrees in"), id=self._calls[int(kind[6:] or 1) - 1].id)
        self._calls = tuple(self._call(parts) for _ in range(int(kind[5:] or 1)))
        thought, text = self._part("I look at", "thought" in parts), self._part("Let me see", "text" in parts)
        return Turn("assistant", text, self._calls, thought)

    def _part(self, text: str, is_wanted: bool) -> str:
        return self.text(text) if is_wanted else ""

    def _call(self, parts: list[str]) -> Call:
        given = dict(part.split("=", 1) for part in parts if "=" in part)
        number = next(self._numbers)
        arguments = given["arguments"] if "arguments" in given else json.dumps({"city": self.text("near")})
        return Call(given.get("id", f"call_{number:024}"), "get_weather", arguments)


def shapes() -> list[Shape]:
    """All conversations."""
    found = []
    for name, words in _SHAPES.items():
        writer = _Writer()
        turns = tuple(map(writer.turn, words.split() if isinstance(words, str) else words))
        found.append(Shape(name, turns, tuple(writer.text.all), continues=name == "an answer that is continued"))
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
# Turns by words. `calls3` are three calls in one turn, and `result2` is the result of the second one; `lost` and `gone`
# are results without a call, and a `picture` is a question about one. Behind a + is what an answer or a call has
# besides, or a call's id or arguments.
_SHAPES: dict[str, str | list[str]] = {
    "one question": "user",
    "a system message": "system user answer user",
    "two system messages": "system system user",
    "system, then developer": "system developer user",
    "a developer message": "developer user answer user",
    "later system messages": "system user answer system user answer user system",
    "a later developer message": "system user answer developer user",
    "system messages between results and calls": "system user call result system call result system",
    "only a system message": "system",
    "questions without an answer": "user user user answer user",
    "two answers": "user answer answer user",
    "an answer first": "answer user answer user",
    "an answer first after a system message": "system answer user",
    "empty answers": "user nothing user answer user nothing user",
    "an answer that is continued": "system user answer",
    "a call and its result": "system user call result",
    "several calls, one after another": "system user call result call result answer user call result",
    "parallel calls": "user calls3 result result2 result3 calls3 result result2 result3 answer user",
    "results in another order": "user calls2 result2 result answer user",
    "text next to calls": "user call+text result call+text result answer user",
    "text after results": "user call result user calls3 result result2 result3 user user answer user",
    "text between results": "user calls2 result user result2",
    "calls without a result": "user call user calls2 result2 user call answer user",
    "results without a call": "user lost answer call result gone user",
    "ids of other servers": ["user", *(word for id in _IDS for word in (f"call+id={id}", "result"))],
    "calls cut off or without an object": [
        "user",
        *(word for cut in _CUT for word in (f"call+arguments={cut}", "result")),
    ],
    "reasoning": "user answer+thought user call+thought result call+thought result",
    "reasoning and text next to calls": (
        "user call+text+thought result calls3+text+thought result result2 result3 answer+thought user"
        " call+text+thought result"
    ),
    "an image": "picture answer user",
    "an agent's ten turns": " ".join(_agent()),
}
