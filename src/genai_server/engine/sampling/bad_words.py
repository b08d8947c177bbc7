"""The tokens that must not come next because they would complete a word that the request bans."""

from collections import defaultdict, deque
from collections.abc import Sequence


class BadWords:
    """The bad words of one request, and the last tokens of its answer.

    A word of several tokens bans its last token where the answer ends with the others, as in vLLM. A step costs time
    only for words whose last token but one is the answer's newest.
    """

    def __init__(self, words: Sequence[Sequence[int]]) -> None:
        self._single = list(dict.fromkeys(word[0] for word in words if len(word) == 1))
        # The words of several tokens, by the last token but one.
        self._several: defaultdict[int, list[Sequence[int]]] = defaultdict(list)
        for word in words:
            if len(word) > 1:
                self._several[word[-2]].append(word)
        self._last: deque[int] = deque(maxlen=max(map(len, words)) - 1)

    def banned(self) -> list[int]:
        """The tokens that must not come next."""
        begun = self._several.get(self._last[-1], ()) if self._last else ()
        if not begun:
            return self._single
        last = list(self._last)
        return [*self._single, *(word[-1] for word in begun if last[1 - len(word) :] == list(word[:-1]))]

    def note(self, token: int) -> None:
        """Note a token of the answer."""
        self._last.append(token)
