"""Stop strings that span the pieces of a text."""

from typing import SupportsIndex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genai_server.text.answers.stop_strings import StopStrings

# Few letters, so that strings often start and overlap.
TEXTS = st.text("ab\n", max_size=30)
STOPS = st.lists(st.text("ab\n", min_size=1, max_size=5), max_size=4)


def shown(strings: list[str], pieces: list[str]) -> tuple[str, str | None]:
    """The shown text of an answer, and the stop string that ended it."""
    stop = StopStrings(strings)
    text = ""
    for piece in pieces:
        more, stopped = stop.feed(piece)
        text += more
        assert stopped == (stop.found is not None)
        if stopped:
            assert stop.feed("more") == ("", True)
            break
    return text + stop.finish(), stop.found


def expected(strings: list[str], text: str) -> tuple[str, str | None]:
    """The same by trying each position of the text in turn."""
    for end in range(len(text) + 1):
        complete = [string for string in strings if text[:end].endswith(string)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(TEXTS, STOPS, st.data())
def test_text_ends_at_the_first_complete_stop_string(text: str, strings: list[str], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)))))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert shown(strings, pieces) == expected(strings, text)


@given(TEXTS, STOPS)
def test_only_possible_stop_strings_are_held_back(text: str, strings: list[str]) -> None:
    stop = StopStrings(strings)
    seen = "".join(stop.feed(character)[0] for character in text)
    if stop.found is None:
        held = text[len(seen) :]
        assert held == stop.finish()
        assert not held or any(string.startswith(held) for string in strings)


@pytest.mark.parametrize(
    ("strings", "pieces", "text", "found"),
    [
        (["</s>"], ["a</", "s", ">b"], "a", "</s>"),
        (["</s>"], ["a</", "sb"], "a</sb", None),
        (["abcd", "bc"], ["abcd"], "a", "bc"),
        (["bc", "abc"], ["xabc"], "x", "abc"),
        (["aab"], ["aaab"], "a", "aab"),
        (["\n\n"], ["one\n", "two\n", "\nthree"], "one\ntwo", "\n\n"),
        (["é👋"], ["é", "é", "👋"], "é", "é👋"),
        ([], ["all", " of it"], "all of it", None),
    ],
)
def test_text_shown_ends_before_a_stop(strings: list[str], pieces: list[str], text: str, found: str | None) -> None:
    assert shown(strings, pieces) == (text, found)


class Counted(str):
    """A text that counts how often a character of any such text is looked at."""

    __slots__ = ()
    steps = 0

    def __getitem__(self, place: SupportsIndex | slice) -> str:
        Counted.steps += 1
        return super().__getitem__(place)


@pytest.fixture(autouse=True)
def steps_from_zero() -> None:
    Counted.steps = 0


def test_repeated_near_match_takes_linear_time() -> None:
    stop = StopStrings([Counted("a" * 1000 + "b")])
    assert stop.feed("a" * 10_000) == ("a" * 9000, False)
    assert Counted.steps < 50_000


def test_many_long_stop_strings_cost_no_more_than_their_matches() -> None:
    stop = StopStrings([Counted(f"{chr(0x4E00 + number)}{'x' * 1023}") for number in range(64)])
    assert stop.feed("no character of them begins here: x" * 100) == (
        "no character of them begins here: x" * 100,
        False,
    )
    assert Counted.steps == 64
    assert stop.feed("\u4e01xx.") == ("\u4e01xx.", False)
    assert Counted.steps < 80
