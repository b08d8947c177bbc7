"""Finds stop strings in a text that arrives in pieces."""

from collections import defaultdict
from collections.abc import Collection


class StopStrings:
    """Finds non-empty stop strings in a text that arrives in pieces.

    The first stop string that is complete ends the text; of several that end at one character, the longest. The stop
    string is removed from the text, unless `is_shown` is set.
    """

    def __init__(self, strings: Collection[str], *, is_shown: bool = False) -> None:
        # The stop string that ended the text.
        self.found: str | None = None
        self._is_shown = is_shown
        self._by_first_character: defaultdict[str, list[_Search]] = defaultdict(list)
        for string in strings:
            self._by_first_character[string[0]].append(_Search(string))
        # Those of which the text so far ends with a beginning. With many stop strings, these are still few.
        self._begun: list[_Search] = []
        # Text held back because it may be the beginning of a stop string.
        self._held = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """Process the next piece of the answer's text.

        Returns the text that can be shown now, and whether a stop string has ended the text.
        """
        if self.found is not None:
            return "", True
        if not self._begun and self._by_first_character.keys().isdisjoint(text):
            return text, False
        for n, character in enumerate(text):
            complete = self._advance(character)
            if complete:
                self.found = max(complete, key=len)
                shown = self._held + text[: n + 1]
                shown = shown if self._is_shown else shown.removesuffix(self.found)
                self._held = ""
                return shown, True
        text = self._held + text
        shown = text[: len(text) - max((search.num_matched for search in self._begun), default=0)]
        self._held = text[len(shown) :]
        return shown, False

    def finish(self) -> str:
        """Return the text that was held back as the possible beginning of a stop string, when no more text follows."""
        rest, self._held = self._held, ""
        return rest

    def _advance(self, character: str) -> list[str]:
        """Process one character and return the stop strings that are complete with this character."""
        starting = self._by_first_character.get(character, ())
        searches = [*self._begun, *(search for search in starting if not search.num_matched)]
        complete = [search.string for search in searches if search.advance(character)]
        self._begun = [search for search in searches if search.num_matched]
        return complete


class _Search:
    """Knuth–Morris–Pratt search for one stop string."""

    def __init__(self, string: str) -> None:
        self.string = string
        # Number of the string's first characters that the text so far ends with.
        self.num_matched = 0
        # For each number of matching characters, the next smaller number that also matches. It grows with the longest
        # match so far: most stop strings never match more than a few characters, and there may be many long ones.
        self._shorter = [0, 0]

    def advance(self, character: str) -> bool:
        """Process one character and return whether the text now ends with the complete stop string."""
        for length in range(len(self._shorter), self.num_matched + 1):
            self._shorter.append(self._after(self._shorter[-1], self.string[length - 1]))
        self.num_matched = self._after(self.num_matched, character)
        return self.num_matched == len(self.string)

    def _after(self, num_matched: int, character: str) -> int:
        while num_matched and self.string[num_matched] != character:
            num_matched = self._shorter[num_matched]
        return num_matched + 1 if self.string[num_matched] == character else 0
