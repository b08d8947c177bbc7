"""Examples of the types of an SDK, made from their annotations: a new version of the SDK brings its new types."""

import itertools
from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NotRequired, Required, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel
from typing_extensions import TypeAliasType, get_type_hints, is_typeddict


def members(annotation: Any) -> Iterator[Any]:
    """The types of a union, and of the unions in it."""
    annotation = _bare(annotation)
    if get_origin(annotation) in (Union, UnionType):
        for member in get_args(annotation):
            yield from members(member)
    else:
        yield annotation


def fields(model: Any) -> dict[str, Any]:
    """The annotations of a model's fields, or a typed dictionary's, keyed by their names in JSON."""
    if isinstance(model, type) and issubclass(model, BaseModel):
        return {field.alias or name: field.annotation for name, field in model.model_fields.items()}
    assert is_typeddict(model), model
    return {name: _bare(hint) for name, hint in get_type_hints(model, include_extras=True).items()}


def required(model: Any) -> set[str]:
    """The names in JSON of the fields that a model, or a typed dictionary of optional fields, must have."""
    if is_typeddict(model):
        origins: dict[str, Any] = {
            name: get_origin(hint) for name, hint in get_type_hints(model, include_extras=True).items()
        }
        return {name for name, origin in origins.items() if origin is Required}
    return {field.alias or name for name, field in model.model_fields.items() if field.is_required()}


def by_kind(*annotations: Any) -> dict[str, Any]:
    """The members of unions, keyed by the values of their `type`; of several with one, the first."""
    found: dict[str, Any] = {}
    for member in (member for annotation in annotations for member in members(annotation)):
        for one in members(fields(member).get("type", NoneType)):
            for value in get_args(one) if get_origin(one) is Literal else ():
                found.setdefault(value, member)
    return found


def kinds(annotation: Any) -> set[str]:
    """The values of `type` of a union's members."""
    return set(by_kind(annotation))


class Examples:
    """Makes examples in which each text of a client's choice is a mark of its own.

    `texts` are the texts of the fields with these names instead of marks. With `only_required`, optional fields are
    left out.
    """

    def __init__(self, texts: Mapping[str, str] | None = None, *, only_required: bool = False) -> None:
        self._numbers = itertools.count()
        self._texts = texts or {}
        self._only_required = only_required
        # Each mark with the name of the field that it is in.
        self.marks: dict[str, str] = {}

    def of(self, annotation: Any, name: str = "") -> Any:
        """A value of a type, by default with all of its optional fields; of a union, the first type."""
        annotation = next(members(annotation))
        origin = get_origin(annotation)
        if origin is Literal:
            return get_args(annotation)[0]
        if origin is list or getattr(origin, "__name__", "") in ("Iterable", "Sequence"):
            return [self.of(get_args(annotation)[0], name)]
        if origin is dict:
            return {self._mark(name): self.of(get_args(annotation)[1], name)}
        if annotation in (bool, int, float):
            return annotation(1)
        if annotation in (str, object, Any) or isinstance(annotation, TypeVar):
            return self._mark(name)
        if annotation is NoneType:
            return None
        chosen = required(annotation) if self._only_required else fields(annotation).keys()
        return {field: self.of(hint, field) for field, hint in fields(annotation).items() if field in chosen}

    def _mark(self, name: str) -> str:
        if name in self._texts:
            return self._texts[name]
        mark = f"mark{next(self._numbers)}x"
        self.marks[mark] = name
        return mark


def _bare(annotation: Any) -> Any:
    if isinstance(annotation, TypeAliasType):
        return _bare(annotation.__value__)
    if get_origin(annotation) in (Annotated, Required, NotRequired):
        return _bare(get_args(annotation)[0])
    return annotation
