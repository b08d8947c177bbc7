"""Drafts of an answer's next tokens: those its grammar forces, or what followed the same tokens in its prompt, its
prediction, itself or earlier answers.

The latter is speculative decoding by lookup (n-grams). One pass verifies a complete draft. Drafting pays if enough of
its tokens are accepted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from genai_server.engine.scheduling.text_index import GAP, MAX_MATCH, MIN_MATCH, FindText, Match, TextIndex

# Maximum length of a draft in tokens.
MAX_LENGTH = 15
# Minimum length in tokens of a match in the sequence's own text.
_OWN_MATCH = 2
# After this number of tokens without a match in a text, it is looked up after every fourth token only.
_MANY_MISSES, _RARE_LOOKUPS = 32, 4
# Minimum expected speed-up of a pass, in tokens per second, for drafts.
_MIN_GAIN = 1.05
# Tokens until a draft that is not expected to pay is tried anyway. The number doubles with each rejected draft.
_FIRST_PAUSE = 8
_MAX_PAUSE = 256
# Tokens of drafts with a lower chance to be accepted are not read.
_MIN_CHANCE = 0.01
# Factor by which the weight of earlier drafts decays with each new one.
_DECAY = 0.7


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
    """Tokens that may follow a sequence's newest one: given ones, or those that a draft model would make."""

    # Empty if they are not made yet.
    tokens: Sequence[int]
    # The chance that a token is accepted, if those before it are.
    share: float = 0.0
    # Whether to try a token even if it is not expected to pay.
    is_due: bool = False
    # The most tokens that a draft model would make, each in a pass, and those that it reads in the first of these
    # passes; 0 if the tokens are given.
    num_unmade: int = 0
    num_unread: int = 0

    @property
    def length(self) -> int:
        """How many tokens it has, or may have."""
        return len(self.tokens) or self.num_unmade


NO_DRAFT = Draft(())


class Fit(NamedTuple):
    """What a pass reads of drafts."""

    # The number of tokens of each sequence's draft.
    lengths: list[int]
    # Expected tokens per second, without those that are only tried.
    per_second: float
    # What an accepted token counts.
    worth: float = 1.0


def fit_drafts(
    drafts: Sequence[Draft],
    seconds: Sequence[float],
    drafting: Sequence[float] = (),
    worth: Sequence[float] = (),
) -> Fit:
    """How many tokens of each sequence's draft to read in a pass.

    `seconds` are those of passes of 0, 1, … tokens; no pass has more. A pass without drafts has one token for each
    sequence. The drafted tokens are taken by their chance to be accepted, as many as maximize the accepted tokens per
    second. `drafting` are those of passes of the draft model, if any draft is unmade. `worth` is what an accepted token
    counts if 0, 1, … sequences have drafts; 1 if not given.
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
    best, per_second, best_worth = 0, num_rows / seconds[num_rows], 1.0
    accepted, num_drafting = 0.0, 0
    gain = _MIN_GAIN * per_second
    passes = _DraftingPasses(drafting)
    for number, (chance, row, place) in enumerate(chances, 1):
        accepted += chance
        num_drafting += place == 1
        each = worth[num_drafting] if worth else 1.0
        if num_unread := drafts[row].num_unread:
            passes.add(place, num_unread if place == 1 else 1)
        if (found := (num_rows + each * accepted) / (seconds[num_rows + number] + passes.seconds)) > gain:
            best, gain, per_second, best_worth = number, found, found, each
    lengths = [0] * num_rows
    for _, row, _ in chances[:best]:
        lengths[row] += 1
    for row, draft in enumerate(drafts):
        if not lengths[row] and draft.length and draft.is_due and num_rows + sum(lengths) + 1 < len(seconds):
            lengths[row] = 1
    return Fit(lengths, per_second, best_worth)


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


class _Lookup:
    """Drafts from one text, and how many of them are accepted."""

    def __init__(self, find: FindText, min_match: int) -> None:
        self._find = find
        # More drafts after long matches are accepted, so these are counted separately.
        self._long_match = 2 * min_match
        self._short, self._long = Acceptance(0.5), Acceptance(0.75)
        self._followed: Match | None = None  # the last match, and the sequence's tokens at that time
        self._num_tokens = 0
        self._num_misses = 0  # lookups without a match since then

    def longest_match(self, end: Sequence[int], num_tokens: int) -> Match | None:
        """The longest match with the end of a sequence of `num_tokens`."""
        text = self._find()
        if text is None or (self._num_misses >= _MANY_MISSES and num_tokens % _RARE_LOOKUPS):
            return None
        followed = self._followed
        if followed is not None:  # as if the text had continued in the same way
            followed = followed._replace(place=followed.place + num_tokens - self._num_tokens)
        found = text.longest_match(end, followed)
        self._num_misses += 1
        if found is not None:
            self._followed, self._num_tokens, self._num_misses = found, num_tokens, 0
        return found

    def following(self, match: Match, number: int) -> list[int]:
        """At most `number` tokens after a match of the text."""
        text = self._find()
        return [] if text is None else text.following(match, number)

    def acceptance(self, match: Match) -> Acceptance:
        """The acceptance of drafts after a match of such a length."""
        return self._long if match.length >= self._long_match else self._short


class Drafter:
    """Drafts for one sequence, from its own text and from that of `earlier` answers."""

    def __init__(self, prompt: list[int], prediction: list[int], earlier: FindText | None = None) -> None:
        self._num_known = len(prompt)  # tokens of prompt and answer in the text
        self._text = TextIndex(_OWN_MATCH, len(prompt) + len(prediction))
        self._lookups = [_Lookup(lambda: self._text, _OWN_MATCH)]
        if earlier is not None:
            self._lookups.append(_Lookup(earlier, MIN_MATCH))
        # A grammar's text is forced, but the model may tokenize it differently.
        self._forced = Acceptance(0.9)
        self._used = self._forced  # by the last draft
        self._text.add(prompt)
        if prediction:
            # As if the text began with the prompt, followed by the prediction.
            end = prompt[-MAX_MATCH:]
            self._text.add([GAP, *end, *prediction, GAP, *end])

    def draft(self, tokens: list[int], limit: int, forced: Sequence[int] = ()) -> Draft:
        """At most `limit` tokens that may follow prompt and answer `tokens`, which begin with those of the last call.

        They are those after the longest match; of equal ones the one in the sequence's own text. The tokens that a
        grammar has `forced` come first, and alone unless the match continues them.
        """
        self._text.add(tokens[self._num_known :])
        self._num_known = len(tokens)
        limit = min(limit, MAX_LENGTH)
        if limit < 1:
            return NO_DRAFT
        found, acceptance = self._after_match(tokens[-MAX_MATCH:], limit)
        if forced and (len(found) <= len(forced) or found[: len(forced)] != list(forced)):
            found, acceptance = list(forced[:limit]), self._forced
        if not found:
            return NO_DRAFT
        self._used = acceptance
        return Draft(found, acceptance.share, acceptance.is_due(self._num_known))

    def _after_match(self, end: list[int], limit: int) -> tuple[list[int], Acceptance]:
        """The tokens after the longest match with the end of prompt and answer, none without one."""
        best: Match | None = None
        source = self._lookups[0]
        for lookup in self._lookups:
            match = lookup.longest_match(end, self._num_known)
            if match is not None and (best is None or match.length > best.length):
                best, source = match, lookup
        return ([], self._forced) if best is None else (source.following(best, limit), source.acceptance(best))

    def count(self, num_drafted: int, num_accepted: int) -> None:
        """Record how many tokens of the last draft were accepted."""
        self._used.count(num_drafted, num_accepted, self._num_known)
