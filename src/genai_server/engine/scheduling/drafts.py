"""Drafts of an answer's next tokens: those its grammar forces, or what followed the same tokens in its prompt, its
prediction or itself.

The latter is speculative decoding by prompt lookup (n-grams). One pass verifies a complete draft. Drafting pays if
enough of its tokens are accepted.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import ClassVar, NamedTuple

# Maximum length of a draft in tokens.
MAX_LENGTH = 15
# Maximum length of a match in tokens, and maximum number of earlier positions that are compared.
_MAX_MATCH = 16
_MAX_PLACES = 8
# Minimum length of a long match: more of its drafts are accepted, so these are counted separately.
_LONG_MATCH = 4
# Minimum expected speed-up of a pass, in tokens per second, for drafts.
_MIN_GAIN = 1.05
# Tokens until a draft that is not expected to pay is tried anyway. The number doubles with each rejected draft.
_FIRST_PAUSE = 8
_MAX_PAUSE = 256
# Tokens of drafts with a lower chance to be accepted are not read.
_MIN_CHANCE = 0.01
# Factor by which the weight of earlier drafts decays with each new one.
_DECAY = 0.7
# Separates unrelated texts; not a token. Less is a feature of an image (engine/prompt_images.py).
_GAP = -1


class Acceptance:
    """The acceptance of recent drafts, and when one is tried that is not expected to pay."""

    def __init__(self, share: float, *, weight: float = 2.0, decay: float = _DECAY) -> None:
        """Begin as after `weight` tried tokens, of which this share was accepted."""
        # Accepted tokens, and tokens up to the first rejected one.
        self._right, self._tried = weight * share, weight
        self._decay = decay
        self._pause = _FIRST_PAUSE
        self._last = 0  # tokens of the text at the last draft

    @property
    def share(self) -> float:
        """The chance that a token of a draft is accepted, if those before it are."""
        return self._right / self._tried

    def is_due(self, num_tokens: int) -> bool:
        """Whether a draft after a text of `num_tokens` is tried anyway."""
        return num_tokens - self._last >= self._pause

    def count(self, num_drafted: int, num_accepted: int, num_tokens: int) -> None:
        """Record how many tokens of a draft after a text of `num_tokens` were accepted."""
        self._last = num_tokens
        self._right = self._decay * self._right + num_accepted
        self._tried = self._decay * self._tried + min(num_accepted + 1, num_drafted)
        self._pause = _FIRST_PAUSE if num_accepted else min(2 * self._pause, _MAX_PAUSE)


@dataclass(frozen=True)
class Draft:
    """Tokens that may follow a sequence's newest one."""

    tokens: Sequence[int]
    # The chance that a token is accepted, if those before it are.
    share: float = 0.0
    # Whether to try a token even if it is not expected to pay.
    is_due: bool = False
    # Tokens that a draft model has to read for it.
    num_unread: ClassVar[int] = 0

    @property
    def length(self) -> int:
        """How many tokens it has."""
        return len(self.tokens)


@dataclass(frozen=True)
class UnmadeDraft:
    """A draft that a draft model would make; each of its tokens takes a pass of that model."""

    # The most tokens that it may have.
    length: int
    # As in a draft.
    share: float
    # Tokens that the draft model reads in the first of these passes.
    num_unread: int
    is_due: ClassVar[bool] = False


NO_DRAFT = Draft(())


class Fit(NamedTuple):
    """What a pass reads of drafts."""

    # The number of tokens of each sequence's draft.
    lengths: list[int]
    # Expected tokens per second, without those that are only tried.
    per_second: float


def fit_drafts(drafts: Sequence[Draft | UnmadeDraft], seconds: Sequence[float], drafting: Sequence[float] = ()) -> Fit:
    """How many tokens of each sequence's draft to read in a pass.

    `seconds` are those of passes of 0, 1, … tokens; no pass has more. A pass without drafts has one token for each
    sequence. The drafted tokens are taken by their chance to be accepted, as many as maximize the accepted tokens per
    second. `drafting` are those of passes of the draft model, if any draft is unmade.
    """
    num_rows = len(drafts)
    # A row's chances descend, so the sorted order takes each of its tokens after the one before.
    chances = [
        (chance, row, place)
        for row, draft in enumerate(drafts)
        for place in range(1, draft.length + 1)
        if (chance := draft.share**place) >= _MIN_CHANCE
    ]
    chances.sort(key=lambda chance: -chance[0])
    del chances[max(0, len(seconds) - 1 - num_rows) :]
    best, per_second, expected = 0, num_rows / seconds[num_rows], float(num_rows)
    gain = _MIN_GAIN * per_second
    passes = _DraftingPasses(drafting)
    for number, (chance, row, place) in enumerate(chances, 1):
        expected += chance
        if num_unread := drafts[row].num_unread:
            passes.add(place, num_unread if place == 1 else 1)
        if (found := expected / (seconds[num_rows + number] + passes.seconds)) > gain:
            best, gain, per_second = number, found, found
    lengths = [0] * num_rows
    for _, row, _ in chances[:best]:
        lengths[row] += 1
    for row, draft in enumerate(drafts):
        if not lengths[row] and draft.length and draft.is_due and num_rows + sum(lengths) + 1 < len(seconds):
            lengths[row] = 1
    return Fit(lengths, per_second)


class _DraftingPasses:
    """Passes of a draft model, by the place of the token that they draft, and the seconds that they take together."""

    def __init__(self, seconds: Sequence[float]) -> None:
        self.seconds = 0.0
        self._times = seconds
        self._num_tokens: dict[int, int] = {}

    def add(self, place: int, num_tokens: int) -> None:
        """Add the tokens that a row reads in one of the passes. Passes of more tokens than are known take as long as
        that share of the longest one.
        """
        before = self._num_tokens.get(place, 0)
        self._num_tokens[place] = before + num_tokens
        self.seconds += self._of(before + num_tokens) - self._of(before)

    def _of(self, num_tokens: int) -> float:
        if not num_tokens or not self._times:
            return 0.0
        most = len(self._times) - 1
        return self._times[min(num_tokens, most)] * max(1.0, num_tokens / most)


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

    def draft(self, tokens: list[int], limit: int, forced: Sequence[int] = ()) -> Draft:
        """At most `limit` tokens that may follow prompt and answer `tokens`, which begin with those of the last call.

        They are the `forced` tokens of a grammar, if there are any.
        """
        self._add(tokens[self._num_known :])
        self._num_known = len(tokens)
        limit = min(limit, MAX_LENGTH)
        if limit < 1:
            return NO_DRAFT
        if forced:
            self._used = self._forced
            found = forced[:limit]
        else:
            place, length = self._longest_match()
            if not length:
                return NO_DRAFT
            self._used = self._long if length >= _LONG_MATCH else self._short
            found = self._following(place, limit)
        return Draft(found, self._used.share, self._used.is_due(self._num_known))

    def count(self, num_drafted: int, num_accepted: int) -> None:
        """Record how many tokens of the last draft were accepted."""
        self._used.count(num_drafted, num_accepted, self._num_known)

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
        """`number` tokens after a position, or fewer before a separator or image. At the text's end it repeats."""
        found = self._text[place + 1 : place + 1 + number]
        if min(found) < 0:
            return list(takewhile(lambda token: token >= 0, found))
        period = len(found)
        return (found * (-(-number // period)))[:number]
