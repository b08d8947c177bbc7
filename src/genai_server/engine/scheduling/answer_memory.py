"""A memory of the texts of earlier answers, for drafts. Each API key has a text of its own."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial

from genai_server.engine.scheduling.text_index import GAP, MAX_MATCH, TOKEN_BYTES, TextIndex

# Minimum length of a match in tokens: shorter ones are by chance in a text this long.
MIN_MATCH = 4
# A segment has at most this share of the memory. So little is dropped at once.
_MAX_SHARE = 8
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
