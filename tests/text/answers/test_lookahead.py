"""The text of an answer for parsers written as generators."""

import re
from collections.abc import Callable

import pytest

from genai_server.text.answers.parsing import Lookahead, Reader, T, read_complete

LETTERS = re.compile("[a-z]*")


def found(reader: Reader[T]) -> T:
    """The result of a parser that needs no more text."""
    with pytest.raises(StopIteration) as end:
        next(reader)
    value: T = end.value.value
    return value


def waits(reader: Reader[object]) -> bool:
    """Whether a parser needs more text."""
    return next(reader, "found something") is None


def text_of(text: str, *, ended: bool = False) -> Lookahead:
    made = Lookahead()
    made.append(text)
    if ended:
        made.end()
    return made


def test_a_literal_is_waited_for_as_long_as_it_can_come() -> None:
    text = text_of("<to")
    reader = text.take("<tool>")
    assert waits(reader)
    text.append("ol>x")
    assert found(reader) is True
    assert found(text.peek()) == "x"


@pytest.mark.parametrize(("come", "ended"), [("<tx", False), ("<to", True), ("", True)])
def test_impossible_literal_leaves_the_position_unchanged(come: str, ended: bool) -> None:
    text = text_of(come, ended=ended)
    assert found(text.take("<tool>")) is False
    assert text.at == 0


@pytest.mark.parametrize(("come", "taken"), [("</to", True), ("", True), ("</tools", False), ("x", False)])
def test_a_last_literal_may_be_cut_by_the_end(come: str, taken: bool) -> None:
    text = text_of(come, ended=True)
    assert found(text.take_last("</tool>")) is taken
    assert text.at == (len(come) if taken else 0)


@pytest.mark.parametrize(("read", "at"), [(Lookahead.take_all, 3), (Lookahead.peek_all, 0)])
def test_a_run_that_is_taken_or_looked_at_ends_with_another_character(
    read: Callable[[Lookahead, re.Pattern[str]], Reader[str]], at: int
) -> None:
    text = text_of("ab")
    reader = read(text, LETTERS)
    assert waits(reader)
    text.append("c1")
    assert (found(reader), text.at) == ("abc", at)


def test_a_run_ends_with_the_text_and_nothing_comes_after_it() -> None:
    text = text_of("ab", ended=True)
    assert (found(text.take_all(LETTERS)), found(text.peek())) == ("ab", "")


def test_places_stay_right_when_what_is_before_is_forgotten() -> None:
    text = text_of("a" * 10_000 + " ")
    found(text.take_all(LETTERS))
    text.forget()
    place = text.at
    text.append(" def1")
    assert found(text.skip_space()) == "d"
    assert found(text.take_all(LETTERS)) == "def"
    assert (place, text.at, text.since(place)) == (10_000, 10_005, "  def")


def test_text_up_to_a_literal_comes_with_its_last_letter() -> None:
    text = Lookahead()
    reader = text.take_until("</a>")
    for piece in ("one <", "/b> ", "</", "a"):
        text.append(piece)
        assert next(reader, "done") is None
    text.append("> two")
    assert found(reader) == "one </b> "
    text.end()
    assert read_complete(text.take_until("</a>")) is None
    assert read_complete(text.peek()) == ""
