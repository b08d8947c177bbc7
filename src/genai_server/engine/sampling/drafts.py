"""Drafts of an answer's next tokens: those its grammar forces, or what followed the same tokens in its prompt, its
prediction or itself.

The latter is speculative decoding by prompt lookup (n-grams). One pass verifies a complete draft. Drafting pays if
enough of its tokens are accepted.
"""

from collections.abc import Callable, Iterable, Sequence

# Lengths of drafts in tokens.
LENGTHS = (1, 2, 3, 5, 7, 11, 15)
# Maximum length of a match in tokens, and maximum number of earlier positions that are compared.
_MAX_MATCH = 16
_MAX_PLACES = 8
# Minimum length of a long match: more of its drafts are accepted, so these are counted separately.
_LONG_MATCH = 4
# Minimum expected speed-up, in tokens per second, for a draft.
_MIN_GAIN = 1.05
# Tokens until a draft that is not expected to pay is tried anyway. The number doubles with each rejected draft.
_FIRST_PAUSE = 8
_MAX_PAUSE = 256
# Factor by which the weight of earlier drafts decays with each new one.
_DECAY = 0.7
# Separates unrelated texts; not a token.
_GAP = -1

# Seconds of a pass of one sequence over a number of tokens; 0 if unknown.
PassSeconds = Callable[[int], float]


class Acceptance:
    """The acceptance of recent drafts, and the decision how long the next one is."""

    def __init__(self, share: float) -> None:
        # Accepted tokens, and tokens up to the first rejected one.
        self._right, self._tried = 2 * share, 2.0
        self._pause = _FIRST_PAUSE
        self._last = 0  # tokens of the text at the last draft

    def length(self, limit: int, num_tokens: int, seconds: PassSeconds) -> int:
        """The number of tokens to draft, at most `limit`, after a text of `num_tokens`; 0 if it would not pay."""
        single, share = seconds(1), self._right / self._tried
        if not single or limit < LENGTHS[0]:
            return 0
        best, gain = 0, 0.0
        for length in LENGTHS:
            expected = sum(share**n for n in range(length + 1))
            if length <= limit and expected * single / seconds(1 + length) > gain:
                best, gain = length, expected * single / seconds(1 + length)
        if gain < _MIN_GAIN and num_tokens - self._last < self._pause:
            return 0
        self._last = num_tokens
        return best

    def count(self, num_drafted: int, num_accepted: int) -> None:
        """Record how many tokens of a draft were accepted."""
        self._right = _DECAY * self._right + num_accepted
        self._tried = _DECAY * self._tried + min(num_accepted + 1, num_drafted)
        self._pause = _FIRST_PAUSE if num_accepted else min(2 * self._pause, _MAX_PAUSE)


class Drafter:
    """Drafts for one sequence.

    As in LZ77 compressors, each position of the text links to the previous position with the same two tokens. So adding
    a token and finding matches take the same time in a text of any length.
    """

    def __init__(self, prompt: list[int], prediction: list[int]) -> None:
        self._num_known = len(prompt)  # tokens of prompt and answer in the text
        self._text: list[int] = []
        self._last: dict[tuple[int, int], int] = {}  # by two tokens, the last position of the second one
        self._earlier: list[int] = []  # for each position, the previous one with the same two tokens; -1 for none
        # A grammar's text is forced, but the model may tokenize it differently.
        self._short, self._long, self._forced = Acceptance(0.5), Acceptance(0.75), Acceptance(0.9)
        self._used = self._short  # by the last draft
        self._add(prompt)
        if prediction:
            # As if the text began with the prompt, followed by the prediction.
            end = prompt[-_MAX_MATCH:]
            self._add([_GAP, *end, *prediction, _GAP, *end])

    def draft(self, tokens: list[int], limit: int, seconds: PassSeconds, forced: Sequence[int] = ()) -> Sequence[int]:
        """At most `limit` tokens that may follow prompt and answer `tokens`; none if no draft is expected to pay.

        They are the `forced` tokens of a grammar, if there are any. `tokens` must begin with those of the last call.
        """
        self._add(tokens[self._num_known :])
        self._num_known = len(tokens)
        if forced:
            self._used = self._forced
            return forced[: self._used.length(min(limit, len(forced)), len(tokens), seconds)]
        place, length = self._longest_match()
        if not length:
            return []
        self._used = self._long if length >= _LONG_MATCH else self._short
        wanted = self._used.length(limit, len(tokens), seconds)
        return self._following(place, wanted) if wanted else []

    def count(self, num_drafted: int, num_accepted: int) -> None:
        """Record how many tokens of the last draft were accepted."""
        self._used.count(num_drafted, num_accepted)

    def _add(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            pair = (self._text[-1] if self._text else _GAP, token)
            self._earlier.append(self._last.get(pair, -1))
            self._last[pair] = len(self._text)
            self._text.append(token)

    def _longest_match(self) -> tuple[int, int]:
        """The end and length of the longest match with the text's end; the last of equal ones. The length may be 0."""
        text, end = self._text, len(self._text) - 1
        best, longest = 0, 0
        place = self._earlier[end]
        for _ in range(_MAX_PLACES):
            if place < 1 or longest == _MAX_MATCH:
                break
            length = 2
            while length < min(_MAX_MATCH, place + 1) and text[place - length] == text[end - length] != _GAP:
                length += 1
            if length > longest:
                best, longest = place, length
            place = self._earlier[place]
        return best, longest

    def _following(self, place: int, number: int) -> list[int]:
        """`number` tokens after a position, or fewer before a separator. At the text's end it repeats."""
        found = self._text[place + 1 : place + 1 + number]
        if _GAP in found:
            return found[: found.index(_GAP)]
        period = len(found)
        return (found * (-(-number // period)))[:number]
