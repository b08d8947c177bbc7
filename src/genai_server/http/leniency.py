"""What a lenient endpoint leaves out of a request instead of refusing it, what of a conversation's history it converts,
and how client and log learn of both.
"""

import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from genai_server.http.dialect import FieldNames
from genai_server.http.json_response import JsonObject
from genai_server.quoted_values import quoted

log = logging.getLogger(__name__)

# Names what was left out of a request.
IGNORED_HEADER = "x-genai-ignored"
# Names what of the history is in the prompt in another form than the request has it.
CONVERTED_HEADER = "x-genai-converted"
# Takes fields out of a body, in place, and returns the names of their places.
LeaveOut = Callable[[Any], list[str]]
# A place of a request with what is said of it: the path of a field of the chat, which the client's name replaces, and a
# remark; or a text with the client's own name.
Place = str | tuple[str, str]

# Of the header, in characters: proxies limit the size of all headers together.
_MAX_CHARACTERS = 2000
# What of a client's own names can be part of a header.
_NAMEABLE = re.compile(r"[\w.-]{1,64}", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# Places, versions and limits, which differ between requests.
_VARYING = re.compile(r"\[\d+\]|_\d{8}\b|\d+")
# What this process has logged, up to a limit, because clients choose some of the names.
_logged: set[str] = set()
_MAX_LOGGED = 500


class Leniency:
    """What is left out of one request; nothing may be where it is treated strictly."""

    def __init__(
        self,
        leave_out: LeaveOut | None = None,
        *,
        history: LeaveOut | None = None,
        convert: LeaveOut | None = None,
        caps: bool = False,
    ) -> None:
        # None for a request that is strict about what it asks for.
        self._leave_out = leave_out
        # What such a request leaves out of its history.
        self._history = history
        # Converts the history, also that of a request that leaves out nothing.
        self._convert = convert
        # Whether the answer's limit is reduced to what fits.
        self._caps = caps
        # The client's names for fields of the chat that its body has become.
        self.names = FieldNames()
        self._left_out: list[str] = []
        self._converted: list[str] = []

    @contextmanager
    def with_names(self, names: FieldNames) -> Iterator[None]:
        """Let errors, and what is left out, name the fields of the body, not those of the chat that it becomes.

        After an error the names stay, for the response.
        """
        self.names = names
        yield
        self.names = FieldNames()

    def apply(self, body: Any) -> None:
        """Convert a body's history, and take out of the body what has no effect."""
        if self._convert is not None:
            self._converted += self._convert(body)
        for leave_out in (self._leave_out, self._history):
            if leave_out is not None:
                self._left_out += leave_out(body)

    def leave_out(self, path: str, remark: str = "") -> bool:
        """Leave out a field of the chat that has no effect, and note it. Returns False where this is not allowed."""
        if self._leave_out is None:
            return False
        self.note([(path, remark)])
        return True

    def leave_out_of_history(self, path: str, remark: str = "") -> bool:
        """Leave out of a chat's history what the model cannot read, and note it. Returns False where this is not
        allowed: where nothing may be left out of a request.
        """
        if self._leave_out is None and self._history is None:
            return False
        self.note([(path, remark)])
        return True

    def note(self, places: Iterable[Place]) -> None:
        """Note what of a request has no effect."""
        self._left_out += map(self._named, places)

    def convert(self, places: Iterable[Place]) -> None:
        """Note what of the history the prompt has in another form, as in `messages[3] (as text of the user)`.

        Nothing of it is lost, so strict requests have it, too.
        """
        self._converted += map(self._named, places)

    def convert_value(self, path: str, given: object, remark: str) -> None:
        """Note a field of the chat whose value is another one in the prompt."""
        self.convert([(path, f" {self.names.value(path, quoted(given))}{remark}")])

    def cap(self, path: str, tokens: int) -> bool:
        """Reduce a limit of the answer to `tokens`, and note it. Returns False where this is not allowed."""
        if self._caps:
            self.note([(path, f" (capped to {tokens})")])
        return self._caps

    def _named(self, place: Place) -> str:
        if isinstance(place, str):
            return place
        path, remark = place
        return self.names.name(path) + remark

    def report(self) -> dict[str, str]:
        """The headers that name all of it; empty if there is nothing. Each name is logged once in a process."""
        for name in self._left_out:
            kind = _VARYING.sub("", name)
            if kind not in _logged and len(_logged) < _MAX_LOGGED:
                _logged.add(kind)
                log.info("left out of a request: %s (GENAI_STRICT=true refuses such requests)", name)
        named = {IGNORED_HEADER: self._left_out, CONVERTED_HEADER: self._converted}
        return {header: _as_header(names) for header, names in named.items() if names}


def _as_header(names: Iterable[str]) -> str:
    text = ", ".join(dict.fromkeys(names)).encode("ascii", "backslashreplace").decode()
    # Clients choose some of the names, such as ids of items: no line break may begin another header.
    text = _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)
    if len(text) <= _MAX_CHARACTERS:
        return text
    start = text[:_MAX_CHARACTERS]
    return f"{start.rpartition(', ')[0] or start}, ..."


def nameable(name: str, otherwise: str) -> str:
    """A name that a client chose if it can be part of a header, else `otherwise`."""
    return name if _NAMEABLE.fullmatch(name) else otherwise


def history_of(body: Any, field: str) -> JsonObject:
    """A body with the history of this list of messages or items: all but the user's last message, in whose place is an
    empty object. What that message has, the request asks the model to read.

    The messages are those of the body, so that changes of one are seen in the other.
    """
    messages = body.get(field) if isinstance(body, dict) else None
    if not isinstance(messages, list):
        return {}
    last = max((n for n, one in enumerate(messages) if isinstance(one, dict) and one.get("role") == "user"), default=-1)
    return {field: [{} if n == last else one for n, one in enumerate(messages)]}


def objects_at(body: Any, path: str) -> Iterator[tuple[str, JsonObject]]:
    """The objects at a path, each with its location, such as `tools[3]`. The empty path is the body itself.

    In a path such as `tools[].name`, `[]` stands for each element.
    """
    found = [("", body)]
    for part in path.split(".") if path else []:
        field = part.removesuffix("[]")
        found = [
            (f"{place}.{field}".removeprefix("."), value[field])
            for place, value in found
            if isinstance(value, dict) and field in value
        ]
        if part.endswith("[]"):
            # A body is limited to 50,000 objects; lists may hold many more other values.
            found = [
                (f"{place}[{index}]", element)
                for place, value in found
                if isinstance(value, list)
                for index, element in enumerate(value)
                if isinstance(element, dict)
            ]
    yield from ((place, value) for place, value in found if isinstance(value, dict))


def remove(body: Any, *paths: str) -> list[str]:
    """Remove fields wherever they are present and not null; returns the locations."""
    found = []
    for path in paths:
        parent, _, field = path.rpartition(".")
        for place, value in objects_at(body, parent):
            if value.pop(field, None) is not None:
                found.append(f"{place}.{field}".removeprefix("."))
    return found


def remove_values(body: Any, table: Mapping[str, Collection[str]]) -> list[str]:
    """Remove each field of the table that has one of its values; returns the locations."""
    found: list[str] = []
    for path, values in table.items():
        parent, _, field = path.rpartition(".")
        if any(value.get(field) in values for _, value in objects_at(body, parent)):
            found += remove(body, path)
    return found


def remove_tools(
    body: Any, is_removed: Callable[[str], object], but: Callable[[JsonObject], bool] = lambda tool: False
) -> list[str]:
    """Remove the tools whose type `is_removed` accepts, but not those that `but` accepts; returns the locations, each
    with the type.
    """
    found = {
        place: tool
        for place, tool in objects_at(body, "tools[]")
        if isinstance(tool.get("type"), str) and is_removed(tool["type"]) and not but(tool)
    }
    if found:
        removed = [id(tool) for tool in found.values()]
        body["tools"] = [tool for tool in body["tools"] if id(tool) not in removed]
    return [f"{place} ({tool['type']})" for place, tool in found.items()]


def replace_media(body: Any, kinds: Mapping[str, str], text_type: str, *paths: str) -> list[str]:
    """Replace parts at these paths whose type is in `kinds` by a text that names the medium; returns the locations."""
    found = []
    for place, part in (located for path in paths for located in objects_at(body, path)):
        kind = part.get("type")
        if isinstance(kind, str) and kind in kinds:
            part.clear()
            part.update(type=text_type, text=f"[{kinds[kind]} left out: this model reads text only]")
            found.append(f"{place} ({kinds[kind]})")
    return found
