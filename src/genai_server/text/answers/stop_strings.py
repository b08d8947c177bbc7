"""Stop strings, found in a text that arrives in pieces."""

from collections.abc import Collection


class StopStrings:
    """Finds non-empty stop strings in a text that arrives in pieces.

    The first stop string to be complete ends the text; of several that end at the same character, the longest one.
    """

    def __init__(self, strings: Collection[str]) -> None:
        # The stop string that ended the text.
        self.found: str | None = None
        self._searches = [_Search(string) for string in strings]
        # Text held back because it may be the beginning of a stop string.
        self._held = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """The text that can be shown now, and whether the text ends there."""
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
        """The text that was held back, when no more text follows."""
        rest, self._held = self._held, ""
        return rest


class _Search:
    """Knuth–Morris–Pratt search for one stop string."""

    def __init__(self, string: str) -> None:
        self.string = string
        # Number of the string's first characters that the text so far ends with.
        self.num_matched = 0
        # For each number of matching characters, the next smaller number that also matches.
        self._shorter = [0, 0]
        for character in string[1:]:
            self._shorter.append(self._after(self._shorter[-1], character))

    def advance(self, character: str) -> bool:
        """Process one character; returns whether it completes the string."""
        self.num_matched = self._after(self.num_matched, character)
        return self.num_matched == len(self.string)

    def _after(self, num_matched: int, character: str) -> int:
        while num_matched and self.string[num_matched] != character:
            num_matched = self._shorter[num_matched]
        return num_matched + 1 if self.string[num_matched] == character else 0
