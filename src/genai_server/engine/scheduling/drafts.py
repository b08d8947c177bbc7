"""Draft tokens for speculative decoding: guesses of the tokens that follow a sequence's newest token. The next forward
pass reads the draft and verifies it, up to the first token that the sampler chooses otherwise.

`TextDrafts` proposes the draft of a sequence from texts: tokens that a grammar or the end of reasoning forces, or the
tokens that followed the sequence's last tokens earlier in its own text, in its prediction, or in earlier answers for
its API key (lookup of n-grams). A draft model makes its proposals elsewhere, in passes of its own
(engine/scheduling/speculation.py).

Each source of drafts has an estimate of the share of its tokens that answers accept (`Acceptance`). As proposals from
texts cost almost no time, each is compared with the answer that follows, whether a pass has read the proposal or not.
How many of the proposed tokens a pass reads is chosen in engine/scheduling/draft_lengths.py.

A `TextIndex` is a text of tokens that finds earlier positions with the same tokens as its end, or as the end of another
text. As in LZ77 compressors, each position of the text links to the previous position whose last tokens have the same
hash, so adding a token and finding a match take the same time in a text of any length. An `AnswerMemory` has such a
text of earlier answers for each API key.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# Maximum length of a match in tokens, and maximum number of earlier positions that are compared.
MAX_MATCH = 16
_MAX_POSITIONS = 16
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
    """A part of a `TextIndex`: consecutive tokens of its text, in arrays of a fixed size with a hash table that finds
    earlier positions of equal tokens.

    `capacity` is the maximum number of tokens, a power of two. `gram` is the number of tokens that are hashed together.
    """

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
        """Bytes of memory that the segment takes, even if it is not full."""
        return self.capacity * TOKEN_BYTES + _SEGMENT_BYTES

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens to the segment, which must have room for them. Negative tokens, the features of images, become
        gaps, in which nothing is found.
        """
        if len(tokens) >= _MANY:
            self._extend_at_once(np.maximum(np.array(tokens, np.int64), GAP))
            return
        text, gram = self.text, self._gram
        for token in tokens:
            position = self.size
            text[position] = max(token, GAP)
            self.size = position + 1
            if position >= gram - 1:
                bucket = _hash(text[position + 1 - gram : position + 1]) >> self.shift
                self.links[position] = self.heads[bucket]
                self.heads[bucket] = position + 1

    def _extend_at_once(self, tokens: NDArray[np.int64]) -> None:
        """Append many tokens to the segment, with numpy instead of a loop in Python. The result is that of `extend`."""
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
        """Free the memory of the segment, even while other objects still refer to it. Nothing is found in it
        any more.
        """
        self.size = 0
        self._allocate(0)


class Match(NamedTuple):
    """A place in a text where the tokens are equal to the last tokens of the text that was searched for. The match has
    `length` tokens, of which the last one is at the index `position` of `segment`.
    """

    segment: Segment
    position: int
    length: int


class TextIndex:
    """A text of tokens in which the last tokens of another text, or of this text itself, are searched, to propose the
    tokens that followed them.

    A match has at least `gram` equal tokens. The index is created with room for `num_tokens` tokens, and grows if
    necessary. The text is divided into segments, of which the oldest can be dropped. A new segment is as large as all
    others together, but has at most `max_segment` tokens, a power of two, unless more tokens are added at once. It
    begins with the last tokens of the segment before it, so that matches across the border are found. The attribute
    `num_bytes` is the memory of the index in bytes.
    """

    def __init__(self, gram: int, num_tokens: int = 0, *, max_segment: int = 1 << 24) -> None:
        self._gram = gram
        self._max_segment = max_segment
        self._segments: list[Segment] = []
        self.num_bytes = _INDEX_BYTES  # of memory
        self._open(num_tokens)

    def add(self, tokens: Sequence[int]) -> None:
        """Append `tokens` to the end of the text, so that they can be found."""
        while tokens:
            newest = self._segments[-1]
            num_free = newest.capacity - newest.size
            if num_free >= len(tokens):
                newest.extend(tokens)
                return
            newest.extend(tokens[:num_free])
            tokens = tokens[num_free:]
            self._open(len(tokens))

    def drop_oldest(self) -> bool:
        """Drop the oldest segment of the text, to free its memory. Returns whether any segment is left."""
        oldest = self._segments.pop(0)
        self.num_bytes -= oldest.num_bytes
        oldest.clear()
        return bool(self._segments)

    def longest_match(self, end: Sequence[int], followed: Match | None = None) -> Match | None:
        """Return the longest match with the end of another text: a place in this text with the same tokens. None if no
        place has at least `gram` equal tokens.

        `end` has the last tokens of the other text, at most MAX_MATCH. `followed` is the place at which an earlier
        match would have continued; None if there is none. There, a single equal token suffices, because a text often
        continues as before after something in it was replaced. Of equally long matches, `followed` is chosen if it is
        among them, and otherwise the last one in the text. Only a limited number of places is compared.
        """
        gram = self._gram
        if len(end) < gram or min(end[-gram:]) < 0:
            return None
        best: Match | None = None
        longest = gram - 1
        if followed is not None:
            length = _common(followed.segment, followed.position, end)
            if length:
                best, longest = Match(followed.segment, followed.position, length), max(longest, length)
        if longest == MAX_MATCH:
            return best
        hashed, last = _hash(end[-gram:]), end[-1]
        num_positions, links = _MAX_POSITIONS, _MAX_LINKS
        for segment in reversed(self._segments):
            number = segment.heads[hashed >> segment.shift]
            while number and num_positions and links:
                links -= 1
                if segment.text[number - 1] == last:  # most other tokens with such a hash end here
                    num_positions -= 1
                    length = _common(segment, number - 1, end)
                    if length > longest:
                        best, longest = Match(segment, number - 1, length), length
                number = segment.links[number - 1]
        return best

    def following(self, match: Match, number: int) -> list[int]:
        """Return the `number` tokens that come after `match` in the text. The list is shorter if a gap between texts or
        the end of a segment comes before.

        If the match is so near the end of the whole text that fewer tokens come after it, these are repeated.
        """
        segment, first = match.segment, match.position + 1
        tokens: list[int] = segment.text[first : min(first + number, segment.size)].tolist()
        if min(tokens) < 0:
            return list(takewhile(lambda token: token >= 0, tokens))
        if len(tokens) < number and segment is self._segments[-1]:
            return (tokens * (-(-number // len(tokens))))[:number]
        return tokens

    def _open(self, num_tokens: int) -> None:
        """Begin a new segment with room for at least `num_tokens` tokens in addition to those that it takes over from
        the segment before it.
        """
        num_stored = sum(segment.size for segment in self._segments)
        carried: list[int] = []
        if self._segments:
            newest = self._segments[-1]
            carried = newest.text[max(0, newest.size - MAX_MATCH) : newest.size].tolist()
        wanted = max(_MIN_SEGMENT, min(num_stored, self._max_segment), num_tokens + len(carried))
        segment = Segment(1 << (wanted - 1).bit_length(), self._gram)
        segment.extend(carried)
        self._segments.append(segment)
        self.num_bytes += segment.num_bytes


def _common(segment: Segment, position: int, end: Sequence[int]) -> int:
    """Return how many tokens of `segment`, up to and including the one at the index `position`, are equal to the last
    tokens in `end`.

    Returns 0 if no token comes after the position, because nothing could then be proposed.
    """
    if position + 1 >= segment.size or segment.text[position + 1] < 0:
        return 0
    text, length = segment.text, 0
    maximum = min(len(end), position + 1)
    while length < maximum and text[position - length] == end[-1 - length] >= 0:
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
    """The texts of earlier answers, from which `TextDrafts` proposes drafts for later answers. Each API key has a text
    of its own, so that clients do not see the effect of others' answers.

    A text is found by a name, such as the name of an API key. All texts take at most `max_bytes` bytes of memory; the
    oldest answers of the least recently used text are dropped first. The time for a call does not grow with the amount
    of text. The attribute `num_bytes` is the memory of all texts.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        # Rounded down, because segments have powers of two of tokens.
        maximum = max(1, max_bytes // (_MAX_SHARE * TOKEN_BYTES))
        self._max_segment = 1 << (maximum.bit_length() - 1)
        self._texts: dict[str, TextIndex] = {}  # the least recently used first
        self.num_bytes = 0  # of all texts

    def of(self, name: str) -> FindText:
        """Return a function that returns the text with the name `name`, or None as long as there is no such text or
        after it was dropped. The text counts as used now.
        """
        if (text := self._texts.pop(name, None)) is not None:
            self._texts[name] = text
        return partial(self._texts.get, name)

    def add(self, name: str, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """Append an answer to the text with the name `name`. The last tokens of the prompt are put before it, so that
        the answer is found if a question is repeated. Old answers are dropped if there is no memory.
        """
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
        """Drop all texts. Running sequences find no drafts in them any more, either."""
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
_MIN_OWN_MATCH = 2
# Factor by which the weight of earlier tokens decays with each new one: about the last 14 tokens count.
_DECAY = 0.93


class Acceptance:
    """An estimate of the probability that the answer accepts a draft token, given that it has accepted the tokens
    before it in the draft. It is computed from recent drafts of one source.
    """

    def __init__(self, share: float, *, weight: float = 2.0, decay: float = _DECAY) -> None:
        """Begin with an assumption: as if `weight` tokens had been drafted, of which the part `share`, from 0 to 1, was
        accepted.

        `decay` is the factor, below 1, by which earlier tokens lose weight with each new one.
        """
        self._first = (weight * share, weight)
        # Accepted tokens, and tokens up to the first rejected one.
        self._right, self._tried = self._first
        self._decay = decay

    @property
    def share(self) -> float:
        """The estimated probability, from 0 to 1, that a draft token is accepted if the tokens before it in the draft
        are.
        """
        return self._right / self._tried

    def count(self, num_drafted: int, num_accepted: int) -> None:
        """Record that the first `num_accepted` of the `num_drafted` tokens in a draft were accepted, and update the
        estimate.
        """
        num_tried = min(num_accepted + 1, num_drafted)
        decay = self._decay**num_tried
        self._right = decay * self._right + num_accepted
        self._tried = decay * self._tried + num_tried

    def forget(self, share: float) -> None:
        """Move the estimate towards the assumption with which it began, by the part `share`: 0 changes nothing, and 1
        discards all recent drafts.
        """
        self._right += share * (self._first[0] - self._right)
        self._tried += share * (self._first[1] - self._tried)


@dataclass(frozen=True)
class Draft:
    """A draft: tokens that may follow a sequence's newest token, with the probability that they are accepted.

    Either the tokens are known, or a draft model would have to propose them. In the second case, only the maximum
    number of tokens is known, and what the draft model would have to read.
    """

    # Empty if a draft model would have to propose them.
    tokens: Sequence[int]
    # The chance that a token is accepted, if those before it are.
    share: float = 0.0
    # The maximum number of tokens that a draft model would propose, and the number of the sequence's tokens that it
    # would read in its first pass for this draft; both are 0 if the tokens are known.
    max_proposed: int = 0
    num_unread: int = 0
    # Whether the draft model would propose all tokens in that pass. Otherwise it needs a pass for each token.
    is_parallel: bool = False

    @property
    def length(self) -> int:
        """Number of tokens of the draft if they are known, and otherwise the maximum number that a draft model would
        propose.
        """
        return len(self.tokens) or self.max_proposed

    @property
    def expected(self) -> float:
        """Number of the draft's tokens that are expected to be accepted, which need not be a whole number."""
        return sum(self.share**position for position in range(1, self.length + 1))


NO_DRAFT = Draft(())


class TextDrafts:
    """Proposes the draft tokens of one sequence from texts: tokens that are forced, or the tokens that followed equal
    tokens earlier in a text. No model is needed, so a proposal costs almost no time.

    The texts are the sequence itself, whose `prompt` is given and whose answer grows; its `prediction`, which the
    client expects as a part of the answer; and the text of earlier answers that the function `earlier` returns (None if
    there are none).
    """

    def __init__(self, prompt: list[int], prediction: list[int], earlier: FindText | None = None) -> None:
        self._num_known = len(prompt)  # tokens of prompt and answer in the text
        self._text = TextIndex(_MIN_OWN_MATCH, len(prompt) + len(prediction))
        # Each text with the length of a long match. More tokens after these are accepted, so they have an estimate of
        # their own, the second one.
        self._texts: list[tuple[FindText, int]] = [(lambda: self._text, 2 * _MIN_OWN_MATCH)]
        if earlier is not None:
            self._texts.append((earlier, 2 * MIN_MATCH))
        self._acceptances = [(Acceptance(0.5), Acceptance(0.75)) for _ in self._texts]
        # A grammar's text is forced, but the model may tokenize it differently.
        self._forced = Acceptance(0.9)
        # By the number of the text, its last match, and how many tokens the sequence had at that time.
        self._followed: dict[int, tuple[Match, int]] = {}
        # The last proposal and its source.
        self._proposed: list[int] = []
        self._source = self._forced
        self._text.add(prompt)
        if prediction:
            # As if the text began with the prompt, followed by the prediction.
            end = prompt[-MAX_MATCH:]
            self._text.add([GAP, *end, *prediction, GAP, *end])

    def propose(self, tokens: list[int], k: int, forced: Sequence[int] = ()) -> Draft:
        """Return a draft of at most `k` tokens to follow `tokens`, which are all tokens of the sequence; an empty draft
        if nothing is found. The accuracy of the last proposal is recorded, too.

        `tokens` must begin with the tokens of the last call. The draft has the tokens that followed the longest match
        with the end of the sequence in one of the texts; among equally long matches, the one in the sequence itself is
        used. If there are `forced` tokens, which a grammar or the end of reasoning requires next, these are the draft,
        unless the tokens after the match begin with them.
        """
        new = tokens[self._num_known :]
        self._text.add(new)
        self._num_known = len(tokens)
        if new and self._proposed:
            equal = takewhile(lambda pair: pair[0] == pair[1], zip(new, self._proposed, strict=False))
            self._source.count(min(len(new), len(self._proposed)), len(list(equal)))
            self._proposed = []
        k = min(k, MAX_LENGTH)
        if k < 1:
            return NO_DRAFT
        proposed, source = self._after_match(tokens[-MAX_MATCH:], k)
        if forced and (len(proposed) <= len(forced) or proposed[: len(forced)] != list(forced)):
            proposed, source = list(forced[:k]), self._forced
        if not proposed:
            return NO_DRAFT
        self._proposed, self._source = proposed, source
        return Draft(proposed, source.share)

    def _after_match(self, end: list[int], k: int) -> tuple[list[int], Acceptance]:
        """Return at most `k` tokens that followed the longest match in all texts, and the estimate of how often such
        tokens are accepted. `end` has the last tokens of the sequence, for which a match is searched. The list is empty
        if there is no match.
        """
        best: tuple[TextIndex, Match, Acceptance] | None = None
        for number, (find, long_match) in enumerate(self._texts):
            if (text := find()) is None:
                continue
            followed = None
            if number in self._followed:  # as if the text had continued in the same way
                last, num_tokens = self._followed[number]
                followed = last._replace(position=last.position + self._num_known - num_tokens)
            match = text.longest_match(end, followed)
            if match is not None:
                self._followed[number] = match, self._num_known
                if best is None or match.length > best[1].length:
                    best = text, match, self._acceptances[number][match.length >= long_match]
        return ([], self._forced) if best is None else (best[0].following(best[1], k), best[2])
