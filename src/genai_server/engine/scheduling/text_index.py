"""A text of tokens that finds earlier places with the same tokens as its end, or as the end of another text. A memory
of earlier answers has such a text for each API key.

As in LZ77 compressors, each position of the text links to the previous position whose last tokens have the same hash.
So adding a token and finding a match take the same time in a text of any length.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
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
