"""Drafts of an answer's next tokens: those its grammar forces, or what followed the same tokens in its prompt, its
prediction, itself or earlier answers.

The latter is speculative decoding by lookup (n-grams). One pass verifies a complete draft. Drafting pays if enough of
its tokens are accepted.

A `TextIndex` is a text of tokens that finds earlier places with the same tokens as its end, or as the end of another
text. As in LZ77 compressors, each position of the text links to the previous position whose last tokens have the same
hash, so adding a token and finding a match take the same time in a text of any length. An `AnswerMemory` has such a
text of earlier answers for each API key.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# Maximum length of a match in tokens, and maximum number of earlier positions that are compared.
MAX_MATCH = 16
_MAX_PLACES = 16
# Maximum number of positions with the same hash, most of which have other tokens. A full segment has one on average.
_MAX_LINKS = 64
# Separates unrelated texts; not a token. Features of images, whose ids are negative, become gaps.
GAP = -1
# Tokens of the smallest segment, and the shortest text whose hashes are computed together.
_MIN_SEGMENT = 256
_MANY = 64
# Bytes of a token with its link and its share of the hash table, and of a segment's and an index's own objects.
TOKEN_BYTES, _SEGMENT_BYTES, _INDEX_BYTES = 12, 1_024, 512
_FACTOR, _HASH_BITS = 0x9E3779B1, 32
_MASK = (1 << _HASH_BITS) - 1
# Minimum length of a match in the memory, in tokens: shorter ones are by chance in a text this long.
MIN_MATCH = 4
# A segment has at most this share of the memory. So little is dropped at once.
_MAX_SHARE = 8


class Segment:
    """Consecutive tokens in arrays of fixed size. `capacity` is a power of two."""

    __slots__ = ("_arrays", "_gram", "capacity", "heads", "links", "shift", "size", "text")

    def __init__(self, capacity: int, gram: int) -> None:
        self.size = 0  # tokens
        self._gram = gram
        self._allocate(capacity)

    def _allocate(self, capacity: int) -> None:
        self.capacity = capacity
        self.shift = _HASH_BITS + 1 - capacity.bit_length()  # a hash without so many bits is an index of `heads`
        # Tokens; the previous position with the same hash, for each; the last position, for each hash. Positions are
        # counted from 1, so that 0 stands for none: the system provides the pages of zeros once they are written.
        self._arrays: NDArray[np.int32] = np.zeros((3, capacity), np.int32)
        values = self._arrays.reshape(-1).data
        self.text, self.links, self.heads = values[:capacity], values[capacity : 2 * capacity], values[2 * capacity :]

    @property
    def num_bytes(self) -> int:
        """Bytes of memory, whether tokens fill it or not."""
        return self.capacity * TOKEN_BYTES + _SEGMENT_BYTES

    def extend(self, tokens: Sequence[int]) -> None:
        """Add tokens, for which there is room."""
        if len(tokens) >= _MANY:
            self._extend_at_once(np.maximum(np.array(tokens, np.int64), GAP))
            return
        text, gram = self.text, self._gram
        for token in tokens:
            place = self.size
            text[place] = max(token, GAP)
            self.size = place + 1
            if place >= gram - 1:
                bucket = _hash(text[place + 1 - gram : place + 1]) >> self.shift
                self.links[place] = self.heads[bucket]
                self.heads[bucket] = place + 1

    def _extend_at_once(self, tokens: NDArray[np.int64]) -> None:
        """The same, in a fraction of the time."""
        text, links, heads = self._arrays
        end = self.size + len(tokens)
        text[self.size : end] = tokens
        first = max(self.size, self._gram - 1)
        self.size = end
        hashes = np.zeros(end - first, np.uint32)
        for offset in range(1 - self._gram, 1):
            hashes = (hashes ^ (text[first + offset : end + offset] + 1).astype(np.uint32)) * np.uint32(_FACTOR)
        buckets = (hashes >> np.uint32(self.shift)).astype(np.int64)
        order = np.argsort(buckets, kind="stable")
        ordered = buckets[order]
        # Each position links to the one before it with its bucket: among these tokens, or else among those before.
        before = heads[ordered]
        follows = np.flatnonzero(ordered[1:] == ordered[:-1])
        before[follows + 1] = first + order[follows] + 1
        links[first + order] = before
        is_last = np.append(ordered[1:] != ordered[:-1], True)
        heads[ordered[is_last]] = first + order[is_last] + 1

    def clear(self) -> None:
        """Free the memory, also if something still refers to the segment."""
        self.size = 0
        self._allocate(0)


class Match(NamedTuple):
    """A place of a text, and how many tokens up to it are those of another text's end."""

    segment: Segment
    place: int
    length: int


class TextIndex:
    """Texts that are found by their last `gram` tokens. `num_tokens` are expected.

    They are in segments, of which the oldest can be dropped. A new one is as large as all others, but has at most
    `max_segment` tokens, a power of two, unless more are added at once. It begins with the last tokens of the one
    before.
    """

    __slots__ = ("_gram", "_max_segment", "_segments", "num_bytes")

    def __init__(self, gram: int, num_tokens: int = 0, *, max_segment: int = 1 << 24) -> None:
        self._gram = gram
        self._max_segment = max_segment
        self._segments: list[Segment] = []
        self.num_bytes = _INDEX_BYTES  # of memory
        self._open(num_tokens)

    def add(self, tokens: Sequence[int]) -> None:
        """Continue the text."""
        while tokens:
            newest = self._segments[-1]
            room = newest.capacity - newest.size
            if room >= len(tokens):
                newest.extend(tokens)
                return
            newest.extend(tokens[:room])
            tokens = tokens[room:]
            self._open(len(tokens))

    def drop_oldest(self) -> bool:
        """Drop the text of the oldest segment; returns whether there is another one."""
        oldest = self._segments.pop(0)
        self.num_bytes -= oldest.num_bytes
        oldest.clear()
        return bool(self._segments)

    def longest_match(self, end: Sequence[int], followed: Match | None = None) -> Match | None:
        """The longest match of at least `gram` tokens with the end of a text, of which the last MAX_MATCH are given.

        Of equal ones it is `followed`, where an earlier match has led to, or else the last. One equal token there is
        enough, because a text often goes on after what was replaced.
        """
        gram = self._gram
        if len(end) < gram or min(end[-gram:]) < 0:
            return None
        best: Match | None = None
        longest = gram - 1
        if followed is not None:
            length = _common(followed.segment, followed.place, end)
            if length:
                best, longest = Match(followed.segment, followed.place, length), max(longest, length)
        if longest == MAX_MATCH:
            return best
        hashed, last = _hash(end[-gram:]), end[-1]
        places, links = _MAX_PLACES, _MAX_LINKS
        for segment in reversed(self._segments):
            number = segment.heads[hashed >> segment.shift]
            while number and places and links:
                links -= 1
                if segment.text[number - 1] == last:  # most other tokens with such a hash end here
                    places -= 1
                    length = _common(segment, number - 1, end)
                    if length > longest:
                        best, longest = Match(segment, number - 1, length), length
                number = segment.links[number - 1]
        return best

    def following(self, match: Match, number: int) -> list[int]:
        """`number` tokens after a match, or fewer before a gap or a segment's end. At the text's end it repeats."""
        segment, first = match.segment, match.place + 1
        found: list[int] = segment.text[first : min(first + number, segment.size)].tolist()
        if min(found) < 0:
            return list(takewhile(lambda token: token >= 0, found))
        if len(found) < number and segment is self._segments[-1]:
            return (found * (-(-number // len(found))))[:number]
        return found

    def _open(self, num_tokens: int) -> None:
        """Begin a segment for at least `num_tokens`."""
        known = sum(segment.size for segment in self._segments)
        carried: list[int] = []
        if self._segments:
            newest = self._segments[-1]
            carried = newest.text[max(0, newest.size - MAX_MATCH) : newest.size].tolist()
        wanted = max(_MIN_SEGMENT, min(known, self._max_segment), num_tokens + len(carried))
        segment = Segment(1 << (wanted - 1).bit_length(), self._gram)
        segment.extend(carried)
        self._segments.append(segment)
        self.num_bytes += segment.num_bytes


def _common(segment: Segment, place: int, end: Sequence[int]) -> int:
    """How many tokens up to a place are the last ones of a text; 0 if none follows the place."""
    if place + 1 >= segment.size or segment.text[place + 1] < 0:
        return 0
    text, length = segment.text, 0
    most = min(len(end), place + 1)
    while length < most and text[place - length] == end[-1 - length] >= 0:
        length += 1
    return length


def _hash(tokens: Sequence[int] | memoryview) -> int:
    hashed = 0
    for token in tokens:
        hashed = (hashed ^ (token + 1)) * _FACTOR & _MASK
    return hashed


# Finds the text of a key, while it is kept.
FindText = Callable[[], TextIndex | None]


class AnswerMemory:
    """The texts of answers by the names of their memories, in at most `max_bytes`.

    The name used least recently loses its oldest answers first. No call takes longer because more is kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        # Rounded down, because segments have powers of two of tokens.
        most = max(1, max_bytes // (_MAX_SHARE * TOKEN_BYTES))
        self._max_segment = 1 << (most.bit_length() - 1)
        # The least recently used first.
        self._texts: OrderedDict[str, TextIndex] = OrderedDict()
        self.num_bytes = 0  # of all texts

    def of(self, name: str) -> FindText:
        """Finds the text of a name, which counts as used now."""
        if name in self._texts:
            self._texts.move_to_end(name)
        return partial(self._texts.get, name)

    def add(self, name: str, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """Keep an answer. Of its prompt the last tokens are kept, so that the same question finds its beginning."""
        tokens = [*prompt[-MAX_MATCH:], *answer, GAP]
        text = self._texts.pop(name, None)
        if text is None:
            text = TextIndex(MIN_MATCH, len(tokens), max_segment=self._max_segment)
        else:
            self.num_bytes -= text.num_bytes
        text.add(tokens)
        self._texts[name] = text
        self.num_bytes += text.num_bytes
        while self.num_bytes > self._max_bytes:
            self._drop_oldest()

    def clear(self) -> None:
        """Drop everything, also from the drafts of running sequences."""
        while self._texts:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        name, text = next(iter(self._texts.items()))
        self.num_bytes -= text.num_bytes
        if text.drop_oldest():
            self.num_bytes += text.num_bytes
        else:
            del self._texts[name]


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
