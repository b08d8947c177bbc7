"""Texts that end an answer and are never shown."""

from collections.abc import Sequence


class StopStrings:
    """Finds the first of some texts in a text that comes piece by piece; what may become one is held back."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = strings
        self._held = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """What can be shown, and whether a stop string has come."""
        if not self._strings:
            return text, False
        self._held += text
        found = [place for string in self._strings if (place := self._held.find(string)) >= 0]
        if found:
            return self._held[: min(found)], True
        keep = max((n for s in self._strings for n in range(len(s)) if self._held.endswith(s[:n])), default=0)
        shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return shown, False

    def finish(self) -> str:
        """The rest, if none has come."""
        rest, self._held = self._held, ""
        return rest
