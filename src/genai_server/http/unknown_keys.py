"""Unknown keys of a conversation's history are left out and named, because clients send back whatever they were given.

A message that one program received from one server is later sent to another: with the keys of an SDK (`parsed`), of
another server (`opts`), or of the next version of an API. A request is strict only about what it asks for itself.
"""

from collections.abc import Iterator
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from genai_server.http.json_response import JsonObject
from genai_server.http.leniency import nameable, objects_at

# Places named for one request. Clients add the same few keys to each message.
_MAX_NAMED = 32


def remove_unknown_keys(body: Any, path: str, form: Any) -> list[str]:
    """Remove the keys that `form` does not have from the objects at a path of a body, and from all objects in these.

    `form` is the type of these objects: a model, or a union of models of which each has a `type` of its own. Returns
    the places of removed keys that were not null, each once and without indexes: `messages[].tool_calls[].index`. An
    object whose `type` no model has is left as it is, for validation to refuse. The empty path is the body itself.
    """
    places: dict[str, None] = {}
    for _, value in objects_at(body, path):
        for place in _remove(value, path, form):
            if len(places) < _MAX_NAMED:
                places[place.removeprefix(".")] = None
    return list(places)


def _remove(value: JsonObject, place: str, form: Any) -> Iterator[str]:
    model = _model_of(value, form)
    if model is None:
        return
    known = _fields(model)
    for key in [key for key in value if key not in known]:
        if value.pop(key) is not None:
            yield f"{place}.{nameable(key, '(a key)')}"
    for key, inner in value.items():
        if isinstance(inner, dict):
            yield from _remove(inner, f"{place}.{key}", known[key])
        elif isinstance(inner, list) and _models(known[key]):
            for element in inner:
                if isinstance(element, dict):
                    yield from _remove(element, f"{place}.{key}[]", known[key])


def _model_of(value: JsonObject, form: Any) -> type[BaseModel] | None:
    """The model of a value, by its `type` if there are several."""
    models = _models(form)
    if len(models) < 2:
        return next(iter(models), None)
    kind = value.get("type")
    if not (kind is None or isinstance(kind, str)):
        return None
    return next((model for model in models if kind in _types(model)), None)


@cache
def _models(form: Any) -> tuple[type[BaseModel], ...]:
    """The models that a type annotation allows, also as elements of a list."""
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
    """The type of each field, keyed by its name in JSON."""
    return {field.alias or name: field.annotation for name, field in model.model_fields.items()}


@cache
def _types(model: type[BaseModel]) -> frozenset[Any]:
    """The values of `type` that a model takes, None among them if `type` may be absent."""
    field = model.model_fields.get("type")
    if field is None:
        return frozenset()
    literals = [one for one in (field.annotation, *get_args(field.annotation)) if get_origin(one) is Literal]
    found = {value for literal in literals for value in get_args(literal)}
    return frozenset(found | (set() if field.is_required() else {None}))
