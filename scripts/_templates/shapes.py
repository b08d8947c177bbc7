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

    def system(self, role: str = "system") -> Turn:
        return Turn(role, self.text("Be brief"))

    def user(self, *, has_image: bool = False) -> Turn:
        return Turn("user", self.text("What about"), has_image=has_image)

    def answer(self, *, reasoning: bool = False) -> Turn:
        return Turn("assistant", self.text("It is"), reasoning=self.text("I think of") if reasoning else "")

    def call(self, id: str = "", arguments: str | None = None) -> Call:
        number = next(self._numbers)
        given = json.dumps({"city": self.text("near")}) if arguments is None else arguments
        return Call(id or f"call_{number:024}", "get_weather", given)

    def calls(self, *calls: Call, says: bool = False, reasoning: bool = False) -> Turn:
        thought = self.text("I look at") if reasoning else ""
        return Turn("assistant", self.text("Let me see") if says else "", calls or (self.call(),), thought)

    def result(self, turn: Turn, place: int = 0) -> Turn:
        return Turn("tool", self.text("21 degrees in"), id=turn.calls[place].id)


def shapes() -> list[Shape]:
    """All conversations."""
    found = []
    for name, make in _SHAPES.items():
        writer = _Writer()
        turns = tuple(make(writer))
        found.append(Shape(name, turns, tuple(writer.text.all), continues=name == "an answer that is continued"))
    return found


def _loop(write: _Writer, **said: bool) -> Iterator[Turn]:
    turn = write.calls(**said)
    yield turn
    yield write.result(turn)


def _parallel(write: _Writer, **said: bool) -> Iterator[Turn]:
    turn = write.calls(write.call(), write.call(), write.call(), **said)
    yield turn
    for place in range(3):
        yield write.result(turn, place)


def _later_system(write: _Writer) -> Iterator[Turn]:
    yield from (write.system(), write.user(), write.answer(), write.system(), write.user(), write.answer())
    yield from (write.user(), write.system())


def _later_developer(write: _Writer) -> Iterator[Turn]:
    yield from (write.system(), write.user(), write.answer(), write.system("developer"), write.user())


def _system_in_a_loop(write: _Writer) -> Iterator[Turn]:
    yield from (write.system(), write.user(), *_loop(write), write.system(), *_loop(write), write.system())


def _text_after_results(write: _Writer) -> Iterator[Turn]:
    yield from (write.user(), *_loop(write), write.user(), *_parallel(write), write.user(), write.user())
    yield from (write.answer(), write.user())


def _text_between_results(write: _Writer) -> Iterator[Turn]:
    turn = write.calls(write.call(), write.call())
    yield from (write.user(), turn, write.result(turn), write.user(), write.result(turn, 1))


def _other_order(write: _Writer) -> Iterator[Turn]:
    turn = write.calls(write.call(), write.call())
    yield from (write.user(), turn, write.result(turn, 1), write.result(turn, 0), write.answer(), write.user())


def _open_calls(write: _Writer) -> Iterator[Turn]:
    turn = write.calls(write.call(), write.call())
    yield from (write.user(), write.calls(), write.user(), turn, write.result(turn, 1), write.user())
    yield from (write.calls(), write.answer(), write.user())


def _orphans(write: _Writer) -> Iterator[Turn]:
    yield from (write.user(), Turn("tool", write.text("21 degrees in"), id="call_lost"), write.answer())
    yield from (*_loop(write), Turn("tool", write.text("22 degrees in"), id="call_gone"), write.user())


def _ids(write: _Writer) -> Iterator[Turn]:
    yield write.user()
    for id in (
        "toolu_01A09q90qw90lq917835lq9",
        "chatcmpl-tool-3fa85f6457174562b3fc2c963f66afa6",
        "a",
        "Ab1Cd2Ef3",
        "f:0",
    ):
        turn = write.calls(write.call(id))
        yield from (turn, write.result(turn))


def _cut(write: _Writer) -> Iterator[Turn]:
    yield write.user()
    for arguments in ('{"city": "', "", "Paris", "[1, 2]", '{"city": NaN}', "null", '{"city": "Paris"}}'):
        turn = write.calls(write.call(arguments=arguments))
        yield from (turn, write.result(turn))


def _empty_answers(write: _Writer) -> Iterator[Turn]:
    yield from (write.user(), Turn("assistant", ""), write.user(), write.answer(), write.user(), Turn("assistant", ""))
    yield write.user()


def _reasoning(write: _Writer) -> Iterator[Turn]:
    yield from (write.user(), write.answer(reasoning=True), write.user(), *_loop(write, reasoning=True))
    yield from _loop(write, reasoning=True)


def _everything_beside_calls(write: _Writer) -> Iterator[Turn]:
    yield from (write.user(), *_loop(write, reasoning=True, says=True), *_parallel(write, reasoning=True, says=True))
    yield from (write.answer(reasoning=True), write.user(), *_loop(write, reasoning=True, says=True))


def _agent(write: _Writer) -> Iterator[Turn]:
    """Ten turns with reminders, text after results, parallel calls, a cancelled call and an answer cut off."""
    yield from (write.system(), write.system("developer"), write.user(), write.user())
    for number in range(10):
        yield from (_parallel if number % 3 == 0 else _loop)(write, says=number % 2 == 0, reasoning=number % 4 == 0)
        if number % 2:
            yield write.system()
        if number % 3 == 1:
            yield write.user()
        if number == 5:
            yield from (write.calls(), write.user())
        if number == 7:
            yield from (write.answer(), write.user(), write.user())
    yield from (write.system(), write.user())


_SHAPES = {
    "one question": lambda write: [write.user()],
    "a system message": lambda write: [write.system(), write.user(), write.answer(), write.user()],
    "two system messages": lambda write: [write.system(), write.system(), write.user()],
    "system, then developer": lambda write: [write.system(), write.system("developer"), write.user()],
    "a developer message": lambda write: [write.system("developer"), write.user(), write.answer(), write.user()],
    "later system messages": _later_system,
    "a later developer message": _later_developer,
    "system messages between results and calls": _system_in_a_loop,
    "only a system message": lambda write: [write.system()],
    "questions without an answer": lambda write: [*(write.user() for _ in range(3)), write.answer(), write.user()],
    "two answers": lambda write: [write.user(), write.answer(), write.answer(), write.user()],
    "an answer first": lambda write: [write.answer(), write.user(), write.answer(), write.user()],
    "an answer first after a system message": lambda write: [write.system(), write.answer(), write.user()],
    "empty answers": _empty_answers,
    "an answer that is continued": lambda write: [write.system(), write.user(), write.answer()],
    "a call and its result": lambda write: [write.system(), write.user(), *_loop(write)],
    "several calls, one after another": lambda write: [
        *(write.system(), write.user(), *_loop(write), *_loop(write), write.answer(), write.user(), *_loop(write))
    ],
    "parallel calls": lambda write: [write.user(), *_parallel(write), *_parallel(write), write.answer(), write.user()],
    "results in another order": _other_order,
    "text next to calls": lambda write: [
        *(write.user(), *_loop(write, says=True), *_loop(write, says=True), write.answer(), write.user())
    ],
    "text after results": _text_after_results,
    "text between results": _text_between_results,
    "calls without a result": _open_calls,
    "results without a call": _orphans,
    "ids of other servers": _ids,
    "calls cut off or without an object": _cut,
    "reasoning": _reasoning,
    "reasoning and text next to calls": _everything_beside_calls,
    "an image": lambda write: [write.user(has_image=True), write.answer(), write.user()],
    "an agent's ten turns": _agent,
}
