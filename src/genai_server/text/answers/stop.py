"""Ends an answer where one of a request's stop strings comes up in it, and never shows one."""

from collections.abc import Collection


class StopStrings:
    """Looks for stop strings, none of which is empty, in a text that comes in pieces.

    The one that is complete first ends the text; of several that are complete at the same character, the longest. How
    the text is cut into pieces makes no difference. `found` is that string, None while there is none.
    """

    def __init__(self, strings: Collection[str]) -> None:
        self.found: str | None = None
        self._searches = [_Search(string) for string in strings]
        # What may turn out to be the begin of a stop string.
        self._held = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """What of the text up to here can be shown now, and whether it ends there."""
        if self.found is not None:
            return "", True
        if not self._searches:
            return text, False
        for n, character in enumerate(text):
            complete = [search.string for search in self._searches if search.advance(character)]
            if complete:
                self.found = max(complete, key=len)
                shown = (self._held + text[: n + 1]).removesuffix(self.found)
                self._held = ""
                return shown, True
        text = self._held + text
        shown = text[: len(text) - max(search.num_matched for search in self._searches)]
        self._held = text[len(shown) :]
        return shown, False

    def finish(self) -> str:
        """What was held back, once nothing more comes."""
        rest, self._held = self._held, ""
        return rest


class _Search:
    """Knuth, Morris and Pratt's: of the `string`, `num_matched` characters are the end of the text up to here."""

    def __init__(self, string: str) -> None:
        self.string = string
        self.num_matched = 0
        # For each number of characters that match, the next smaller one with which they end, too.
        self._shorter = [0, 0]
        for character in string[1:]:
            self._shorter.append(self._after(self._shorter[-1], character))

    def advance(self, character: str) -> bool:
        """Take one more character; returns whether the string is complete with it."""
        self.num_matched = self._after(self.num_matched, character)
        return self.num_matched == len(self.string)

    def _after(self, num_matched: int, character: str) -> int:
        while num_matched and self.string[num_matched] != character:
            num_matched = self._shorter[num_matched]
        return num_matched + 1 if self.string[num_matched] == character else 0
