"""What is common to the formats in which models write tool calls."""

import secrets
import string
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from genai_server.parts import Part, ToolCallArguments, ToolCallStart
from genai_server.text.lookahead import Lookahead, Reader


@dataclass(frozen=True)
class Tool:
    """A function that the model may call; `parameters` is the JSON schema of its arguments, None for no arguments."""

    name: str
    parameters: Mapping[str, Any] | None = None


class ToolFormat(Protocol):
    """How one family of models writes tool calls. `name` is its name in settings."""

    @property
    def name(self) -> str: ...

    @property
    def shown_tokens(self) -> tuple[str, ...]:
        """What the decoder must show where it is a token, even a special one."""
        ...

    @property
    def beginnings(self) -> str:
        """The characters with which calls may begin."""
        ...

    def read_calls(self, text: Lookahead, calls: "Calls", *, new_line: bool) -> Reader[bool]:
        """Go past one or several calls at `text.at` and tell them to `calls`.

        `new_line` says whether a line begins here. Returns False where the text is not, or is no longer, that of
        calls; what of it is not told up to `calls.told_to` is something else.
        """
        ...

    def lark(self, tools: Sequence[Tool], *, parallel: bool, token: Callable[[str], str]) -> str:
        """Lark rules of llguidance with the start rule `calls`: one call or, if `parallel`, one or more.

        `token` gives the Lark expression for a marker: a quoted text, or the special token's id.
        """
        ...

    def new_id(self) -> str:
        """An id for a call as the model's chat template accepts it."""
        ...


class Calls:
    """The calls of one answer: which names there are, and how far the text has been told."""

    def __init__(self, names: Collection[str], new_id: Callable[[], str], tell: Callable[[Part], None]) -> None:
        self.names = names
        self.told_to = 0
        self._new_id = new_id
        self._tell = tell
        self._index = -1

    def start(self, name: str, told_to: int) -> None:
        """A call begins, and the text before `told_to` is told."""
        self._index += 1
        self.told_to = told_to
        self._tell(ToolCallStart(self._index, self._new_id(), name))

    def arguments(self, fragment: str, told_to: int) -> None:
        """More of the call's arguments, and the text before `told_to` is told."""
        self.told_to = told_to
        if fragment:
            self._tell(ToolCallArguments(self._index, fragment))


def random_id(prefix: str = "call_", length: int = 24) -> str:
    """An id that nobody else has: the prefix and so many random letters and digits."""
    return prefix + "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(length))
