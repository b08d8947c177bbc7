"""Drafts of an answer's next tokens: those its grammar forces, or what followed the same tokens in its prompt, its
prediction or itself.

The latter is speculative decoding by prompt lookup (n-grams). A pass reads a whole draft at once. It pays if enough of
the draft's tokens are those that would have been chosen.
"""

from collections.abc import Callable, Iterable, Sequence

# Lengths of drafts in tokens.
LENGTHS = (1, 2, 3, 5, 7, 11, 15)
# The longest match that is looked for, in tokens, and how many earlier places are looked at.
_LONGEST_MATCH = 16
_MOST_PLACES = 8
# From this many tokens on, a match is long: more of its drafts are right, and these are counted by themselves.
_LONG_MATCH = 4
# How many times more tokens a second a draft must be expected to give.
_LEAST_GAIN = 1.05
# Tokens until a draft that is not expected to pay is tried nevertheless. They double with each one that is all wrong.
_FIRST_PAUSE = 8
_LONGEST_PAUSE = 256
# What is left of what earlier drafts count, with each new one.
_KEPT = 0.7
# Separates texts that do not follow each other; not a token.
_GAP = -1

# Seconds of a lone sequence's pass over so many tokens; 0 if unknown.
PassSeconds = Callable[[int], float]


class Acceptance:
    """How many tokens of recent drafts were right, and when to draft by that."""

    def __init__(self, share: float) -> None:
        # Right tokens, and tokens up to the first wrong one.
        self._right, self._tried = 2 * share, 2.0
        self._pause = _FIRST_PAUSE
        self._last = 0  # tokens of the text at the last draft

    def length(self, most: int, num_tokens: int, seconds: PassSeconds) -> int:
        """How many tokens to draft, at most `most`, after a text of `num_tokens`; 0 if it would not pay."""
        single, share = seconds(1), self._right / self._tried
        if not single or most < LENGTHS[0]:
            return 0
        best, gain = 0, 0.0
        for length in LENGTHS:
            expected = sum(share**n for n in range(length + 1))
            if length <= most and expected * single / seconds(1 + length) > gain:
                best, gain = length, expected * single / seconds(1 + length)
        if gain < _LEAST_GAIN and num_tokens - self._last < self._pause:
            return 0
        self._last = num_tokens
        return best

    def count(self, num_drafted: int, num_accepted: int) -> None:
        """Learn how many tokens of a draft were right."""
        self._right = _KEPT * self._right + num_accepted
        self._tried = _KEPT * self._tried + min(num_accepted + 1, num_drafted)
        self._pause = _FIRST_PAUSE if num_accepted else min(2 * self._pause, _LONGEST_PAUSE)


class Drafter:
    """Drafts for one sequence.

    As in LZ77 compressors, each place of the text knows the place before it with the same two tokens. So adding a token
    and finding matches take the same time in a text of any length.
    """

    def __init__(self, prompt: list[int], prediction: list[int]) -> None:
        self._num_known = len(prompt)  # tokens of prompt and answer in the text
        self._text: list[int] = []
        self._last: dict[tuple[int, int], int] = {}  # by two tokens, the last place of the second one
        self._earlier: list[int] = []  # for each place, the one before it with the same two tokens; -1 for none
        # A grammar's text is forced, but the model may choose other tokens for it.
        self._short, self._long, self._forced = Acceptance(0.5), Acceptance(0.75), Acceptance(0.9)
        self._used = self._short  # by the last draft
        self._add(prompt)
        if prediction:
            # As if the prompt had been there before, and the prediction had followed.
            end = prompt[-_LONGEST_MATCH:]
            self._add([_GAP, *end, *prediction, _GAP, *end])

    def draft(self, tokens: list[int], most: int, seconds: PassSeconds, forced: Sequence[int] = ()) -> Sequence[int]:
        """At most `most` tokens that may follow prompt and answer `tokens`; none if no draft is expected to pay.

        They are the `forced` tokens of a grammar, if there are any. Every call has the tokens of the last one, and
        perhaps more.
        """
        self._add(tokens[self._num_known :])
        self._num_known = len(tokens)
        if forced:
            self._used = self._forced
            return forced[: self._used.length(min(most, len(forced)), len(tokens), seconds)]
        place, length = self._longest_match()
        if not length:
            return []
        self._used = self._long if length >= _LONG_MATCH else self._short
        wanted = self._used.length(most, len(tokens), seconds)
        return self._following(place, wanted) if wanted else []

    def count(self, num_drafted: int, num_accepted: int) -> None:
        """Learn how many tokens of the last draft were right."""
        self._used.count(num_drafted, num_accepted)

    def _add(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            pair = (self._text[-1] if self._text else _GAP, token)
            self._earlier.append(self._last.get(pair, -1))
            self._last[pair] = len(self._text)
            self._text.append(token)

    def _longest_match(self) -> tuple[int, int]:
        """Where the longest match with the text's end ends, and its length; of equal ones, the last. 0 if none."""
        text, end = self._text, len(self._text) - 1
        best, longest = 0, 0
        place = self._earlier[end]
        for _ in range(_MOST_PLACES):
            if place < 1 or longest == _LONGEST_MATCH:
                break
            length = 2
            while length < min(_LONGEST_MATCH, place + 1) and text[place - length] == text[end - length] != _GAP:
                length += 1
            if length > longest:
                best, longest = place, length
            place = self._earlier[place]
        return best, longest

    def _following(self, place: int, number: int) -> list[int]:
        """So many tokens after a place, or fewer before a gap. What the text's end cuts off begins again."""
        found = self._text[place + 1 : place + 1 + number]
        if _GAP in found:
            return found[: found.index(_GAP)]
        period = len(found)
        return (found * (-(-number // period)))[:number]
