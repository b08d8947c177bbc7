"""Removes parts of a request that have no effect, instead of refusing the request, and reports them in response headers
and the log. Each API has a table of such fields, a `RemovalRules`, which a `Leniency` applies to each request;
functions such as `remove` and `remove_unknown_keys` do the work.

A part of the conversation history may also be converted to another form, which a second header reports. Unknown keys of
the history are removed and reported as well, because clients send back messages that they received from other programs
and servers, with keys of an SDK (`parsed`), of another server (`opts`) or of a newer version of an API. Only what a
request itself asks for is strict.
"""

import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from genai_server.errors import quoted
from genai_server.http.error_wording import FieldNames
from genai_server.http.json_response import JsonObject

log = logging.getLogger(__name__)

# The response header that names what was left out of the request.
IGNORED_HEADER = "x-genai-ignored"
# The response header that names parts of the history that the prompt has in another form than the request.
CONVERTED_HEADER = "x-genai-converted"
# Removes something from a body, or converts it, in place; returns the locations.
Change = Callable[[Any], Iterable[str]]
# A place of a request with what is said of it: the path of a field of the chat, which the client's name replaces, and a
# remark; or a text with the client's own name.
Location = str | tuple[str, str]

# Maximum number of characters in a header, because proxies limit the size of all headers together.
_MAX_CHARACTERS = 2000
# Names that clients choose and that can be shown in a header.
_NAMEABLE = re.compile(r"[\w.-]{1,64}", re.ASCII)
# Maximum number of locations of unknown keys to report for a request. Clients add the same few keys to each message.
_MAX_NAMED = 32
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# Indexes, versions and limits in a report, which differ between requests.
_VARYING_PARTS = re.compile(r"\[\d+\]|_\d{8}\b|\d+")
# Reports that this process has logged, up to a maximum number, because clients choose some of the names.
_logged: set[str] = set()
_MAX_LOGGED = 500


@dataclass(frozen=True)
class RemovalRules:
    """A table of what an API's lenient endpoints remove from a body: fields, values, and unknown keys. The package of
    the API defines it. Its attributes are applied in the order in which they are declared.
    """

    # Paths of fields without effect, whatever their values; `[]` stands for each element of a list.
    fields: Collection[str] = ()
    # Values without effect, keyed by the path of their field.
    values: Mapping[str, Collection[object]] = field(default_factory=dict)
    # Functions that remove what depends on more than one field.
    rules: Sequence[Change] = ()
    # The types of objects of which unknown keys are left out, keyed by path; see `remove_unknown_keys`.
    forms: Mapping[str, Any] = field(default_factory=dict)

    def remove_from(self, body: Any) -> list[str]:
        """Remove from a parsed body, in place, everything that the table describes. Return the locations of what was
        removed, such as `tools[3].strict`.
        """
        locations = remove(body, *self.fields)
        for path, values in self.values.items():
            parent, _, name = path.rpartition(".")
            if any(_is_one_of(value.get(name), values) for _, value in objects_at(body, parent)):
                locations += remove(body, path)
        for rule in self.rules:
            locations += rule(body)
        for path, form in self.forms.items():
            locations += remove_unknown_keys(body, path, form)
        return locations


def _is_one_of(value: object, values: Iterable[object]) -> bool:
    """Return whether a JSON value equals one of `values` and has the same type: 1 does not equal `true`."""
    return any(type(value) is type(other) and value == other for other in values)


class Leniency:
    """Says what may be left out of one request, by default nothing, and collects what has been left out or converted so
    far. BodyRoute creates one for each request; all code that handles the request reports to it, and `report` makes the
    response headers at the end.
    """

    def __init__(
        self,
        left_out: RemovalRules | None = None,
        *,
        history: RemovalRules | None = None,
        convert: Change | None = None,
        caps: bool = False,
    ) -> None:
        # None if nothing may be left out of what the request asks for.
        self._table = left_out
        # What may nevertheless be left out of the conversation history.
        self._history = history
        # Converts the conversation history, even if nothing may be left out.
        self._convert = convert
        # Whether a maximum number of tokens that does not fit the context is reduced.
        self._caps = caps
        # The client's names for fields of the chat request that its body was translated to.
        self.names = FieldNames()
        self._left_out: list[str] = []
        self._converted: list[str] = []

    @contextmanager
    def with_names(self, names: FieldNames) -> Iterator[None]:
        """Context manager in whose block errors and reports use the field names `names`.

        They map fields of a chat request to those of the client's body, from which it was translated (see FieldNames).
        After an error the names stay in use, for the error's response.
        """
        self.names = names
        yield
        self.names = FieldNames()

    def apply(self, body: Any) -> None:
        """Change a parsed body in place: convert its conversation history, and remove what has no effect. Both are
        recorded for `report`.
        """
        if self._convert is not None:
            self._converted += self._convert(body)
        for table in (self._table, self._history):
            if table is not None:
                self._left_out += table.remove_from(body)

    def leave_out(self, path: str, remark: str = "") -> bool:
        """Ask whether the field at `path` of the chat request may be ignored, and report it as ignored if so. Returns
        whether it may.

        `remark` is added to the field's name in the report.
        """
        if self._table is None:
            return False
        self.note([(path, remark)])
        return True

    def leave_out_of_history(self, path: str, remark: str = "") -> bool:
        """Ask whether the part of the conversation history at `path` of the chat request, which the model cannot read,
        may be ignored, and report it as ignored if so. Returns whether it may.

        `remark` is added to the name of the part in the report.
        """
        if self._table is None and self._history is None:
            return False
        self.note([(path, remark)])
        return True

    def note(self, locations: Iterable[Location]) -> None:
        """Report that these parts of the request are ignored. A location is the path of a field of the chat request
        with a remark, or a text with the client's own name.
        """
        self._left_out += map(self._named, locations)

    def convert(self, locations: Iterable[Location]) -> None:
        """Report parts of the conversation history that are in the prompt in another form, as in `messages[3] (as text
        of the user)`. A location is the path of a field of the chat request with a remark, or a text with the client's
        own name.

        No content is lost, so this happens in strict requests, too.
        """
        self._converted += map(self._named, locations)

    def convert_value(self, path: str, value: object, remark: str) -> None:
        """Report that the prompt does not have `value`, which the client gave for the field at `path` of the chat
        request, but another value. `remark` says which, as in ` (as "high")`.
        """
        self.convert([(path, f" {self.names.value(path, quoted(value))}{remark}")])

    def cap(self, path: str, tokens: int) -> bool:
        """Ask whether the maximum number of tokens of an answer, given in the field at `path`, may be reduced to
        `tokens`, and report the reduction if so. Returns whether it may.
        """
        if self._caps:
            self.note([(path, f" (capped to {tokens})")])
        return self._caps

    def _named(self, location: Location) -> str:
        if isinstance(location, str):
            return location
        path, remark = location
        return self.names.name(path) + remark

    def report(self) -> dict[str, str]:
        """Return the response headers that name everything that was left out of the request or converted; empty if
        there is nothing.

        Each kind of field that was left out is also logged, once in a process.
        """
        for name in self._left_out:
            kind = _VARYING_PARTS.sub("", name)
            if kind not in _logged and len(_logged) < _MAX_LOGGED:
                _logged.add(kind)
                log.info("left out of a request: %s (GENAI_STRICT=true refuses such requests)", name)
        named = {IGNORED_HEADER: self._left_out, CONVERTED_HEADER: self._converted}
        return {header: _as_header(names) for header, names in named.items() if names}


def _as_header(names: Iterable[str]) -> str:
    text = ", ".join(dict.fromkeys(names)).encode("ascii", "backslashreplace").decode()
    # Clients choose some of the names, such as ids of items: no line break may begin another header.
    text = _CONTROL.sub(lambda match: repr(match[0])[1:-1], text)
    if len(text) <= _MAX_CHARACTERS:
        return text
    start = text[:_MAX_CHARACTERS]
    return f"{start.rpartition(', ')[0] or start}, ..."


def nameable(name: str, otherwise: str) -> str:
    """Return `name`, which a client has chosen, if it is safe to show in a header, and otherwise the text
    `otherwise`.
    """
    return name if _NAMEABLE.fullmatch(name) else otherwise


def history_of(body: Any, field: str) -> JsonObject:
    """Return the conversation history in a body, as a body with only the list `field`, such as `messages`: all
    messages, with an empty object in place of the user's last message.

    The user's last message is what the request asks, not history. The messages are the same objects as in the body, so
    changing one changes the body.
    """
    messages = body.get(field) if isinstance(body, dict) else None
    if not isinstance(messages, list):
        return {}
    last = max(
        (n for n, message in enumerate(messages) if isinstance(message, dict) and message.get("role") == "user"),
        default=-1,
    )
    return {field: [{} if n == last else message for n, message in enumerate(messages)]}


def objects_at(body: Any, path: str) -> Iterator[tuple[str, JsonObject]]:
    """Yield the objects at a path of a parsed body, each preceded by its location, such as `tools[3]`. Values that are
    no objects are skipped.

    In a path such as `tools[].function`, `[]` stands for each element of a list. The empty path is the body itself.
    """
    objects = [("", body)]
    for part in path.split(".") if path else []:
        field = part.removesuffix("[]")
        objects = [
            (f"{location}.{field}".removeprefix("."), value[field])
            for location, value in objects
            if isinstance(value, dict) and field in value
        ]
        if part.endswith("[]"):
            # A body is limited to 50,000 objects; lists may hold many more other values.
            objects = [
                (f"{location}[{index}]", element)
                for location, value in objects
                if isinstance(value, list)
                for index, element in enumerate(value)
                if isinstance(element, dict)
            ]
    yield from ((location, value) for location, value in objects if isinstance(value, dict))


def remove(body: Any, *paths: str) -> list[str]:
    """Remove the fields at these paths from a parsed body, in place, wherever they are present. Return the locations of
    the removed fields, without those whose value was null. In a path, `[]` stands for each element of a list.
    """
    locations = []
    for path in paths:
        parent, _, field = path.rpartition(".")
        for location, value in objects_at(body, parent):
            if value.pop(field, None) is not None:
                locations.append(f"{location}.{field}".removeprefix("."))
    return locations


def remove_tools(
    body: Any, is_removed: Callable[[str], object], but: Callable[[JsonObject], bool] = lambda tool: False
) -> list[str]:
    """Remove from the list `tools` of a parsed body the tools whose `type` is accepted by `is_removed`, unless `but`
    accepts the tool. Return the location and type of each removed tool, as in `tools[3] (web_search)`.
    """
    matches = {
        location: tool
        for location, tool in objects_at(body, "tools[]")
        if isinstance(tool.get("type"), str) and is_removed(tool["type"]) and not but(tool)
    }
    if matches:
        removed = [id(tool) for tool in matches.values()]
        body["tools"] = [tool for tool in body["tools"] if id(tool) not in removed]
    return [f"{location} ({tool['type']})" for location, tool in matches.items()]


def replace_media(body: Any, kinds: Mapping[str, str], text_type: str, *paths: str) -> list[str]:
    """Replace images, audio and similar content parts of a parsed body, in place, by a text that says which medium was
    left out. Return the location of each replaced part.

    Content parts at `paths` are replaced if their `type` is in `kinds`, which maps the type to the name of the medium.
    The new part has the type `text_type`.
    """
    locations = []
    for location, part in (located for path in paths for located in objects_at(body, path)):
        kind = part.get("type")
        if isinstance(kind, str) and kind in kinds:
            part.clear()
            part.update(type=text_type, text=f"[{kinds[kind]} left out: this model reads text only]")
            locations.append(f"{location} ({kinds[kind]})")
    return locations


def remove_unknown_keys(body: Any, path: str, form: Any) -> list[str]:
    """Remove the keys that a pydantic model does not have from the objects at `path` of a parsed body, in place, and
    from all objects inside of them. The empty path is the body itself.

    `form` is the type of these objects: a pydantic model, or a union of models that are told apart by their `type`.
    Returns the locations of removed keys that were not null, each once and without indexes:
    `messages[].tool_calls[].index`. An object whose `type` no model has is left as it is, for validation to refuse.
    """
    locations: dict[str, None] = {}
    for _, value in objects_at(body, path):
        for location in _remove(value, path, form):
            if len(locations) < _MAX_NAMED:
                locations[location.removeprefix(".")] = None
    return list(locations)


def _remove(value: JsonObject, location: str, form: Any) -> Iterator[str]:
    model = _model_of(value, form)
    if model is None:
        return
    fields = _fields(model)
    for key in [key for key in value if key not in fields]:
        if value.pop(key) is not None:
            yield f"{location}.{nameable(key, '(a key)')}"
    for key, inner in value.items():
        if isinstance(inner, dict):
            yield from _remove(inner, f"{location}.{key}", fields[key])
        elif isinstance(inner, list) and _models(fields[key]):
            for element in inner:
                if isinstance(element, dict):
                    yield from _remove(element, f"{location}.{key}[]", fields[key])


def _model_of(value: JsonObject, form: Any) -> type[BaseModel] | None:
    """Return the pydantic model of an object, chosen by the object's `type` if the type annotation `form` has several
    models; None if none fits.
    """
    models = _models(form)
    if len(models) < 2:
        return next(iter(models), None)
    kind = value.get("type")
    if not (kind is None or isinstance(kind, str)):
        return None
    return next((model for model in models if kind in _types(model)), None)


@cache
def _models(form: Any) -> tuple[type[BaseModel], ...]:
    """Return the pydantic models that a type annotation allows, including those of list elements."""
    if isinstance(form, type) and issubclass(form, BaseModel):
        return (form,)
    origin = get_origin(form)
    if origin is Annotated:
        return _models(get_args(form)[0])
    if origin in (Union, UnionType, list):
        return tuple(model for member in get_args(form) for model in _models(member))
    return ()


@cache
def _fields(model: type[BaseModel]) -> dict[str, Any]:
    """Return the type annotation of each field of a pydantic model, keyed by the field's name in JSON."""
    return {field.alias or name: field.annotation for name, field in model.model_fields.items()}


@cache
def _types(model: type[BaseModel]) -> frozenset[Any]:
    """Return the values that the field `type` of a pydantic model may have; empty if it has no such field. None is
    among them if the field may be absent.
    """
    field = model.model_fields.get("type")
    if field is None:
        return frozenset()
    literals = [
        annotation
        for annotation in (field.annotation, *get_args(field.annotation))
        if get_origin(annotation) is Literal
    ]
    types = {value for literal in literals for value in get_args(literal)}
    return frozenset(types | (set() if field.is_required() else {None}))
