"""Fields of OpenAI's endpoints that have other names, too: errors are in the names that the client gave."""

import re
from collections.abc import Mapping

from genai_server.errors import RequestError


class OtherNames:
    """The client's names for this server's own fields."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names
        longest_first = sorted(names, key=len, reverse=True)
        self._own = re.compile(rf"\b({'|'.join(map(re.escape, longest_first))})\b") if names else None

    def name(self, text: str) -> str:
        """A text with the client's names."""
        return text if self._own is None else self._own.sub(lambda own: self._names[own[0]], text)

    def error(self, error: RequestError) -> RequestError:
        """An error with the client's names."""
        return error.reworded(self.name(error.message), param=error.param and self.name(error.param))
