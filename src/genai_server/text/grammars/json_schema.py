"""Rewrites a JSON schema (draft 2020-12 and earlier) so that llguidance, the library that enforces grammars, enforces
it exactly.

llguidance allows more than some keywords say. `exact` rewrites these where possible, and otherwise refuses the schema
with the reason. For answers that need not match the whole schema, `relaxed` first removes what cannot be enforced. The
schemas nested in a schema are rewritten first. Then each step of `keyword_steps` handles a few keywords.

Where llguidance implements a `format` differently from the standard, a regular expression replaces it. Whatever matches
the expression has the format; some unusual values of the format do not match. Dates only have days that exist in their
month and year. No time has second 60 (leap seconds are rare). No label of a host name has hyphens as third and fourth
character (reserved for "xn--", which has further rules). Addresses and names are no longer than the standard allows;
some long names with many labels do not match.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from functools import partial
from typing import Any

from genai_server.errors import InvalidField, quoted
from genai_server.text.grammars.grammar_cost import check_schema, target
from genai_server.text.grammars.schema_numbers import (
    BOUNDS,
    check_together,
    check_value,
    multiple,
    with_bounded_integers,
    with_exact_bounds,
)
from genai_server.text.grammars.schema_patterns import has_property, translated

_MONTH_DAY = (
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_MULTIPLES_OF_FOUR = "(?:0[48]|[2468][048]|[13579][26])"
_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_DATE = f"(?:{_YEAR}-{_MONTH_DAY}|(?:[0-9]{{2}}{_MULTIPLES_OF_FOUR}|{_MULTIPLES_OF_FOUR}00)-02-29)"
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_ATEXT = r"[a-zA-Z0-9!#$%&'*+\-/=?^_`{|}~]"
_A, _X, _HEX = "[a-zA-Z0-9]", "[a-zA-Z0-9-]", "[0-9a-f]"


def _label(max_length: int) -> str:
    """Return a regular expression for one label of a host name: the part between two dots.

    A label has at most `max_length` characters, and its third and fourth characters are not both hyphens.
    """
    return f"{_A}(?:{_A}?|{_X}{_A}(?:{_X}{{0,{max_length - 4}}}{_A})?|{_X}-{_A}(?:{_X}{{0,{max_length - 5}}}{_A})?)"


def _name(*kinds: tuple[int, int]) -> str:
    """Return a regular expression for a host name of one of several kinds.

    Each kind is a pair: the maximum number of labels (parts between dots), and the maximum number of characters of a
    label. The total length of a name is not limited in any other way, because this would be too expensive to compile.
    """
    names = [rf"{_label(max_length)}(?:\.{_label(max_length)}){{0,{labels - 1}}}" for labels, max_length in kinds]
    return f"(?:{'|'.join(names)})"


# At most 64 characters; those longer than 32 have at most three dots.
_LOCALS = [
    rf"{_ATEXT}(?:\.?{_ATEXT}){{0,31}}",
    rf"{_ATEXT}{{1,32}}\.?{_ATEXT}{{1,31}}",
    rf"{_ATEXT}{{1,15}}(?:\.{_ATEXT}{{1,15}}){{2,3}}",
]

# Formats that llguidance implements itself.
KNOWN_FORMATS = frozenset({"duration", "ipv4", "ipv6", "uri", "uuid"})
# Maps a format to one that is equal or narrower.
EQUAL_FORMATS = {
    "idn-email": "email",
    "idn-hostname": "hostname",
    "iri": "uri",
    "iri-reference": "uri",
    "uri-reference": "uri",
    "url": "uri",
}

# Keyed by the format's name.
FORMATS = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}[tT]{_TIME}$",
    "hostname": f"^{_name((3, 63), (8, 30))}$",
    "email": f"^(?:{'|'.join(_LOCALS)})@{_name((3, 62), (8, 22))}$",
    "json-pointer": "^(?:/(?:[^/~]|~[01])*)*$",
    "uuid4": f"^{_HEX}{{8}}-{_HEX}{{4}}-4{_HEX}{{3}}-[89ab]{_HEX}{{3}}-{_HEX}{{12}}$",
}


Schema = dict[str, Any]
# Rewrites a schema with at least one of its keywords. Raises InvalidField without the name of a field.
Step = Callable[[Schema], Schema]

# Annotations, which do not constrain values.
_ANNOTATIONS = ("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment")
# Keywords without effect: with these values, or without another keyword.
_NO_EFFECT_VALUES: dict[str, tuple[Any, ...]] = {
    "propertyNames": ({}, True, {"type": "string"}),
    "uniqueItems": (False,),
}
_PARTS_OF = {"then": "if", "else": "if", "minContains": "contains", "maxContains": "contains"}
_NOT_FOLLOWED = (
    "$dynamicRef",
    "$recursiveRef",
    "contains",
    "dependentSchemas",
    "if",
    "not",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
)
TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
# Maximum length of a chain of references between alternatives.
_DEEPEST = 20
# Each one doubles the compiler's work.
_MAX_DEPENDENCIES = 4


def keyword_steps(root: Schema) -> Sequence[tuple[frozenset[str], Step]]:
    """Return the steps that rewrite a schema for exact enforcement, in order of execution.

    A step is a set of keywords and a function, which must be called for each schema within `root` that has one of the
    keywords. It returns the rewritten schema, and raises InvalidField for what cannot be enforced.
    """
    steps: list[tuple[Iterable[str], Step]] = [
        ((*_ANNOTATIONS, *_NO_EFFECT_VALUES, *_PARTS_OF, "if"), without_effect),
        *(((key,), partial(_refused, key)) for key in _NOT_FOLLOWED),
        (("type",), _type),
        (("required",), _required),
        *(((key,), partial(_value, key)) for key in ("enum", "const")),
        (("multipleOf",), _multiple),
        (("minProperties",), _min_properties),
        (("additionalItems",), _additional_items),
        (("dependencies", "dependentRequired"), _dependencies),
        (("oneOf",), partial(_one_of, root)),
        (BOUNDS, with_exact_bounds),
        (("type",), with_bounded_integers),
        (("patternProperties",), _pattern_properties),
        (("pattern",), lambda schema: {**schema, "pattern": _translated(schema["pattern"])}),
        (("format",), _format),
    ]
    return [(frozenset(words), step) for words, step in steps]


def without_effect(schema: Schema) -> Schema:
    """Return a copy of a schema without the keywords that do not constrain values, such as `title` or `then` without
    `if`.
    """
    left_out = {key for key in _ANNOTATIONS if key in schema}
    left_out |= {key for key, values in _NO_EFFECT_VALUES.items() if key in schema and schema[key] in values}
    left_out |= {key for key, other in _PARTS_OF.items() if key in schema and other not in schema}
    if "then" not in schema and "else" not in schema:
        left_out.add("if")
    return {key: value for key, value in schema.items() if key not in left_out}


def _refused(key: str, schema: Schema) -> Schema:
    raise InvalidField(None, f"a schema must not use the keyword {key}, which is not supported")


def _type(schema: Schema) -> Schema:
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if unknown := [kind for kind in kinds if kind not in TYPES]:
        raise InvalidField(None, f"type must be one of {', '.join(TYPES)}", given=str(unknown[0]))
    return schema


def _required(schema: Schema) -> Schema:
    if not isinstance(schema["required"], list) or not all(isinstance(key, str) for key in schema["required"]):
        raise InvalidField(None, "required must be a list of keys", given=str(schema["required"]))
    return schema


def _value(key: str, schema: Schema) -> Schema:
    check_value(schema[key], key)
    return schema


def _multiple(schema: Schema) -> Schema:
    multiple(schema["multipleOf"])
    return schema


def _min_properties(schema: Schema) -> Schema:
    """Check the keyword `minProperties` of a schema, and return the schema unchanged.

    llguidance cannot guarantee that keys which the schema does not name differ, so at most one such key can be
    required. Raises InvalidField if more are required.
    """
    minimum, required = schema["minProperties"], schema.get("required")
    if not isinstance(minimum, int) or (
        schema.get("additionalProperties") is False and "patternProperties" not in schema
    ):
        return schema
    maximum = 1 + (len(set(map(str, required))) if isinstance(required, list) else 0)
    if minimum > maximum:
        raise InvalidField(
            None,
            "minProperties may be at most one more than the keys in required, unless additionalProperties is "
            f"false: {maximum}",
            given=minimum,
        )
    return schema


def _additional_items(schema: Schema) -> Schema:
    if "prefixItems" in schema:
        raise InvalidField(None, "prefixItems and additionalItems belong to different drafts of JSON schema; use items")
    return schema


def _dependencies(schema: Schema) -> Schema:
    """Return the schema with `anyOf` in place of `dependencies` and `dependentRequired`, where a key requires other
    keys.

    Each alternative then says: the key is absent, or the other keys are required. Raises InvalidField for dependencies
    that are no object, for those that are schemas, and for too many of them.
    """
    pairs: list[tuple[str, Any]] = []
    for word in ("dependencies", "dependentRequired"):
        by_key = schema.get(word, {})
        if not isinstance(by_key, dict):
            raise InvalidField(None, f"{word} must be an object", given=str(by_key))
        pairs += by_key.items()
    if any(not isinstance(needed, list) for _, needed in pairs):
        raise InvalidField(None, "dependencies may only have lists of keys; schemas are not supported")
    if len(pairs) > _MAX_DEPENDENCIES:
        raise InvalidField(
            None, f"at most {_MAX_DEPENDENCIES} keys may require others (dependencies)", given=len(pairs)
        )
    alternatives = [{"anyOf": [{"properties": {key: False}}, {"required": needed}]} for key, needed in pairs if needed]
    remaining = {key: value for key, value in schema.items() if key not in ("dependencies", "dependentRequired")}
    return _and(remaining, *alternatives)


def _one_of(root: Schema, schema: Schema) -> Schema:
    """Return the schema with `anyOf` in place of `oneOf`. Both mean the same if no value matches two alternatives.

    References in the alternatives lead to parts of the whole schema `root`. Raises InvalidField if a value might match
    two alternatives.
    """
    branches = schema["oneOf"]
    if not isinstance(branches, list) or not are_disjoint(branches, root):
        raise InvalidField(
            None,
            "the schemas in oneOf must differ in their types, in their values, or in the values of a "
            "required property (const or enum); give anyOf instead",
        )
    return any_of(schema)


def any_of(schema: Schema) -> Schema:
    """Return the schema with `anyOf` in place of `oneOf`, without a check whether both mean the same."""
    remaining = {key: value for key, value in schema.items() if key != "oneOf"}
    return (
        _and(remaining, {"anyOf": schema["oneOf"]}) if "anyOf" in remaining else {**remaining, "anyOf": schema["oneOf"]}
    )


def _pattern_properties(schema: Schema) -> Schema:
    by_pattern = schema["patternProperties"]
    if not isinstance(by_pattern, dict):
        return schema
    rewritten = {translated(key): inner for key, inner in by_pattern.items()}
    if schema.get("additionalProperties") is not False and any(map(has_property, by_pattern)):
        raise InvalidField(None, "patternProperties may have \\p and \\P only if additionalProperties is false")
    if len(rewritten) < len(by_pattern):
        raise InvalidField(None, "patternProperties has the same pattern twice")
    return {**schema, "patternProperties": rewritten}


def _translated(pattern: Any) -> Any:
    """Return a pattern of a JSON schema in the syntax that llguidance's compiler reads. A value that is no text is
    unchanged.
    """
    return translated(pattern) if isinstance(pattern, str) else pattern


def _format(schema: Schema) -> Schema:
    """Return the schema with `pattern` in place of `format`, if llguidance implements the format differently from the
    standard. For schemas that permit no strings, the format is removed.

    Raises InvalidField for an unknown format.
    """
    requested, kinds = schema["format"], schema.get("type", "string")
    remaining = {key: value for key, value in schema.items() if key != "format"}
    if "string" not in (kinds if isinstance(kinds, list) else [kinds]):
        return remaining  # of numbers, as OpenAPI has them, which binds texts only
    name = EQUAL_FORMATS.get(requested, requested) if isinstance(requested, str) else requested
    if not isinstance(name, str) or name not in KNOWN_FORMATS | FORMATS.keys():
        supported = ", ".join(sorted(KNOWN_FORMATS | FORMATS.keys()))
        raise InvalidField(None, f"format must be one of {supported}", given=str(requested))
    if (pattern := FORMATS.get(name)) is None:
        return {**remaining, "format": name}
    return _and(remaining, {"pattern": pattern}) if "pattern" in remaining else {**remaining, "pattern": pattern}


def _and(schema: Schema, *more: Schema) -> Schema:
    """Return a schema that requires `schema` and all schemas in `more`, which are added to its `allOf`."""
    if not more:
        return schema
    conditions = schema.get("allOf", [])
    return {**schema, "allOf": [*(conditions if isinstance(conditions, list) else [{"allOf": conditions}]), *more]}


def are_disjoint(branches: Sequence[Any], root: dict[str, Any]) -> bool:
    """Whether no value matches two of the schemas `branches`.

    The schemas must differ in their types, in their enumerated values, or in the values of one property that all object
    schemas require; other differences are not recognized and give False. References lead to parts of the schema `root`.
    """
    resolved = [_meant(branch, root) for branch in branches]
    values = [_values_of(branch) for branch in resolved]
    if all(branch_values is not None for branch_values in values):
        return _all_differ([value for branch_values in values for value in branch_values or ()])
    objects = [branch for branch in resolved if isinstance(branch, dict) and branch.get("type") == "object"]
    marks: list[Hashable] = [mark for branch in resolved if branch not in objects for mark in _types_of(branch)]
    if len(objects) == 1:
        marks.append("object")
    elif objects:
        discriminator = next((key for key in _required_of(objects[0]) if _distinguishes(key, objects)), None)
        if discriminator is None:
            return False
        marks.append("object")
    return _all_differ(marks)


def _meant(branch: Any, root: dict[str, Any]) -> Any:
    """Return the schema that `branch` refers to, if `branch` consists only of a reference, and otherwise `branch`
    itself.

    References lead to parts of the schema `root`. If a reference leads to nothing or through too many others, {} is
    returned, the schema that allows everything.
    """
    for _ in range(_DEEPEST):
        if not isinstance(branch, dict) or set(branch) != {"$ref"} or not isinstance(branch["$ref"], str):
            return branch
        try:
            branch = target(root, branch["$ref"])
        except InvalidField:
            return {}
    return {}


def _values_of(branch: Any) -> list[Hashable] | None:
    """Return the values that a schema enumerates with `const` or `enum`, in a form that can be compared.

    None if it enumerates none.
    """
    if not isinstance(branch, dict):
        return None
    values = [branch["const"]] if "const" in branch else branch.get("enum")
    return [_comparable(value) for value in values] if isinstance(values, list) else None


def _comparable(value: Any) -> Hashable:
    """Return a hashable form of a JSON value. Two forms are equal if JSON schema takes the values as equal.

    So 1 equals 1.0, but not true.
    """
    if isinstance(value, list):
        return tuple(map(_comparable, value))
    if isinstance(value, dict):
        return frozenset((key, _comparable(inner)) for key, inner in value.items())
    return (bool, value) if isinstance(value, bool) else value


def _types_of(branch: Any) -> Sequence[str]:
    """Return the JSON types of values that may match a schema, by its keyword `type`. "number" stands for "integer",
    too.
    """
    if branch is False:
        return ()
    types = branch.get("type", TYPES) if isinstance(branch, dict) else TYPES
    kinds = [types] if isinstance(types, str) else types
    return sorted({"number" if kind == "integer" else str(kind) for kind in kinds})


def _required_of(branch: dict[str, Any]) -> list[str]:
    """Return the names of the properties that a schema of objects requires."""
    required = branch.get("required", [])
    return [key for key in required if isinstance(key, str)] if isinstance(required, list) else []


def _distinguishes(key: str, objects: Sequence[dict[str, Any]]) -> bool:
    """Whether the property `key` shows which of several object schemas a value matches.

    This is so if all of them require the property and no value of it is enumerated twice.
    """
    marks: list[Hashable] = []
    for branch in objects:
        properties = branch.get("properties")
        values = _values_of(properties.get(key)) if isinstance(properties, dict) else None
        if values is None or key not in _required_of(branch):
            return False
        marks += values
    return _all_differ(marks)


def _all_differ(values: Sequence[Hashable]) -> bool:
    return len(set(values)) == len(values)


_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
_DATA = ("enum", "const", "required", "dependentRequired", "x-guidance")

# What may follow a backslash in JSON. Without "u", a text has only one form; with it, an object's key could be
# disguised as another one.
_ESCAPES = 'nrbtf\\"'


def exact(schema: Mapping[str, Any]) -> tuple[Schema, str]:
    """Rewrite a JSON schema so that llguidance enforces it exactly. The given schema is not changed.

    Returns the rewritten schema, and the characters that may follow a backslash in strings (llguidance's option
    `json_allowed_escapes`). Raises InvalidField, to which the caller adds the field's name, for what cannot be
    enforced.
    """
    rewriting = _Exact(dict(schema))
    return rewriting.whole, _ESCAPES + ("u" if rewriting.has_controls else "")


def rewritten(schema: Schema, change: Callable[[Schema, Schema], Schema]) -> Schema:
    """Rewrite a schema and all schemas nested in it, from the innermost to the outermost, and return the result.

    `change` gets a schema and a copy of it in which the inner schemas are already rewritten, and returns what replaces
    it. Raises InvalidField if the schema is nested too deeply.
    """
    try:
        return _rewritten(schema, change)
    except RecursionError:
        raise InvalidField(None, "the schema is nested too deeply") from None


def _rewritten(schema: Schema, change: Callable[[Schema, Schema], Schema]) -> Schema:
    written: Schema = {}
    for key, value in schema.items():
        if key in _DATA:
            written[key] = value
        elif key in _MAPS and isinstance(value, dict):
            written[key] = {name: _inner(inner, change) for name, inner in value.items()}
        else:
            written[key] = _inner(value, change)
    return change(schema, written)


def _inner(value: Any, change: Callable[[Schema, Schema], Schema]) -> Any:
    """Return the value of a keyword with the schemas in it rewritten, if it is a schema or a list of schemas.

    Any other value is returned unchanged. `change` rewrites one schema (see `rewritten`).
    """
    if isinstance(value, dict):
        return _rewritten(value, change)
    return [_inner(item, change) for item in value] if isinstance(value, list) else value


class _Exact:
    """Rewrites one JSON schema so that llguidance enforces it exactly, for the function `exact`.

    The constructor does the work and raises InvalidField, to which the caller adds the field's name. It also checks
    what depends on several parts of the schema, such as references. Then `whole` is the rewritten schema, and
    `has_controls` says whether it requires texts with control characters.
    """

    def __init__(self, schema: Schema) -> None:
        self._visited: set[int] = set()
        self._references: list[str] = []
        self._multiples: set[tuple[int, int]] = set()
        self._joins = False
        self._is_open = False
        self.has_controls = False
        self._steps = keyword_steps(schema)
        self.whole = rewritten(schema, self._change)
        for reference in self._references:
            if isinstance(part := target(schema, reference), dict) and id(part) not in self._visited:
                raise InvalidField(None, f"{quoted(reference)} refers to no schema")
        if self._joins:
            check_together(self._multiples)
        if self.has_controls and self._is_open:
            raise InvalidField(
                None,
                "texts in enum and const may have no control characters but \\b, \\t, \\n, \\f and \\r where an "
                "object may have keys other than those named in the schema; set additionalProperties to false",
            )

    def _change(self, original: Schema, written: Schema) -> Schema:
        self._visited |= {id(original), *(id(original[key]) for key in _MAPS if key in original)}
        for words, step in self._steps:
            if not words.isdisjoint(written):
                written = step(written)
        self._record(written)
        return written

    def _record(self, schema: Schema) -> None:
        """Remember what a part of the schema has that can only be judged for the schema as a whole, after all parts.

        This is control characters in texts, `multipleOf` values, references, and objects that allow keys which the
        schema does not name.
        """
        self.has_controls |= any(_has_controls(schema[key]) for key in ("enum", "const") if key in schema)
        if (factor := multiple(schema.get("multipleOf"))) is not None:
            self._multiples.add(factor)
        if isinstance(schema.get("$ref"), str):
            self._references.append(schema["$ref"])
        self._joins |= any(key in schema for key in ("$ref", "allOf", "anyOf", "oneOf"))
        named = any(schema.get(key) for key in ("properties", "patternProperties", "required"))
        self._is_open |= named and schema.get("additionalProperties") is not False


def _has_controls(value: Any) -> bool:
    r"""Whether a JSON value contains a text with a control character that JSON can only write with \u."""
    if isinstance(value, str):
        return any((char < " " and char not in "\b\t\n\f\r") or char == "\x7f" for char in value)
    inner = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    return any(map(_has_controls, inner))


# Wrong values of these are mistakes, and nothing that a grammar cannot say.
_NEVER_LEFT_OUT = frozenset({"type", "required"})
# Stands for the schema as a whole among the keywords that are left out.
EVERYTHING = "the schema as a whole"


def relaxed(schema: Mapping[str, Any]) -> tuple[Schema, list[str]]:
    """Return a schema that can be enforced exactly and that every value of the given schema matches.

    Also returns the keywords that were left out for this; [EVERYTHING] if only the type could be kept. Raises
    InvalidField, to which the caller adds the field's name, for an invalid schema.
    """
    relaxing = _Relaxing(dict(schema))
    result = rewritten(relaxing.whole, relaxing.change)
    try:
        check_schema(result, param="")
        exact(result)
    except InvalidField:
        return any_value(schema), [EVERYTHING]
    return result, list(relaxing.left_out)


class _Relaxing:
    """Removes from one schema the keywords that cannot be enforced exactly, for the function `relaxed`.

    `whole` is the given schema. The keys of `left_out` are the removed keywords.
    """

    def __init__(self, root: Schema) -> None:
        self.whole = root
        self.left_out: dict[str, None] = {}
        self._steps = [*keyword_steps(root), (frozenset({"$ref"}), self._reference)]

    def change(self, _: Schema, written: Schema) -> Schema:
        """Return the schema `written`, whose inner schemas are already relaxed, without the keywords that cannot be
        enforced exactly. They are added to `left_out`.

        Raises InvalidField if `type` or `required` is invalid.
        """
        written = without_effect(written)
        for words, step in self._steps:
            if keywords := words & written.keys():
                try:
                    step(written)
                except InvalidField:
                    if keywords & _NEVER_LEFT_OUT:
                        raise
                    written = self._without(written, keywords)
        return written

    def _reference(self, schema: Schema) -> Schema:
        if isinstance(schema["$ref"], str):
            target(self.whole, schema["$ref"])
        return schema

    def _without(self, schema: Schema, words: Set[str]) -> Schema:
        self.left_out.update(dict.fromkeys(sorted(words)))
        if words == {"oneOf"}:
            return any_of(schema)
        remaining = {key: value for key, value in schema.items() if key not in words}
        return {**remaining, "additionalProperties": True} if "patternProperties" in words else remaining


def any_value(schema: Mapping[str, Any]) -> Schema:
    """Return a schema that only says which type values have: that of the given schema.

    Without a type, the result allows any object if the given schema has properties, and otherwise anything.
    """
    kind = schema.get("type", "object" if "properties" in schema else None)
    return {"type": kind} if kind in TYPES else {}
