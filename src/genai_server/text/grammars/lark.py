"""Pieces of grammars in llguidance's dialect of Lark (llguidance documentation, "Syntax of LLGuidance Grammars").

All grammars describe JSON on one line with the separators ", " and ": ", as chat templates show JSON to models. With
flexible whitespace, a model could write spaces until its token limit.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from genai_server.errors import InvalidField
from genai_server.text.grammars.lark_in_json import in_json
from genai_server.text.grammars.schema_exact import exact

# Regular expressions for any text, and for whitespace as the answer parser defines it.
ANYTHING, SPACES = r"(.|\n)*", r"[ \t\r\n]*"
# A regular expression for text up to where a line begins, apart from whitespace.
LINES = rf"({ANYTHING}\n)?{SPACES}"
# A backslash with the escaped character, or a character that ends an expression.
_TO_ESCAPE = re.compile(r"\\.?|[/\n\r\t]", re.DOTALL)
_ESCAPES = {"/": r"\/", "\n": r"\n", "\r": r"\r", "\t": r"\t"}
# Schema keyword for a text that matches a Lark grammar, as written by apis/responses/translate.py.
LARK = "x-lark"
# Precedes a nested grammar, given as JSON text; see `lifted`. It occurs in no JSON and no literal.
_NESTED = "\0text "
_NESTED_TEXT = re.compile(rf'{_NESTED}("(?:[^"\\]|\\.)*")')
_ONE_LINE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def to_text(value: Any, *, ensure_ascii: bool = True) -> str:
    """The JSON text of a schema or grammar, with or without escapes for characters beyond ASCII. Raises InvalidField if
    it is nested too deeply.
    """
    try:
        return json.dumps(value, ensure_ascii=ensure_ascii)
    except RecursionError:
        raise InvalidField(None, "a schema is nested too deeply") from None


def unforced(source: str) -> str:
    """Return a Lark grammar with the option `no_forcing`: llguidance does not look ahead for text that must follow.

    If a text can only continue and never end, as in `start: /x*/ "x"`, llguidance would look ahead forever while it
    generates an answer. If several grammars are combined, the option of the last grammar applies to all of them.
    """
    return f'{source}\n%llguidance {{"no_forcing": true}}'


def quoted(text: str) -> str:
    """Return the Lark literal for exactly this text.

    U+007F is escaped because llguidance refuses it in literals although JSON does not escape it.
    """
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def expression(pattern: str) -> str:
    """Return the Lark notation of a regular expression (as llguidance's `regex_to_lark` writes it)."""
    return f"/{_TO_ESCAPE.sub(_escaped, pattern)}/"


def _escaped(match: re.Match[str]) -> str:
    what = match[0].removeprefix("\\")
    return _ESCAPES.get(what, match[0] if what else "")


def marker(text: str, opaque_tokens: Mapping[str, int]) -> str:
    """Return the Lark expression for a marker of a format: a token id if the marker is an opaque token, else a literal.

    `opaque_tokens` maps the texts of tokens that no literal matches to their ids.
    """
    return f"<[{opaque_tokens[text]}]>" if text in opaque_tokens else quoted(text)


def spelled(text: str, opaque_tokens: Mapping[str, int]) -> str:
    """Return the Lark expression for exactly this text, in which opaque tokens are written as token ids."""
    markers = sorted((token for token in opaque_tokens if token in text), key=len, reverse=True)
    pieces = re.split(f"({'|'.join(map(re.escape, markers))})", text) if markers else [text]
    return " ".join(marker(piece, opaque_tokens) for piece in pieces if piece)


def text_up_to(rule: str, end: str, opaque_tokens: Mapping[str, int], *, without: Iterable[str]) -> str:
    """Return Lark rules for a text that contains none of the texts in `without`, followed by the text `end`.

    `rule` is the name of the first of these rules. `opaque_tokens` maps the texts of tokens that no literal matches to
    their ids.
    """
    unwanted = "|".join(map(re.escape, without))
    terminal = rule.upper()
    text = f"{terminal}: /{ANYTHING}/ & ~{expression(f'{ANYTHING}({unwanted}){ANYTHING}')}\n"
    if any(token in end for token in opaque_tokens):
        # Whitespace before a token belongs to the text: a lexeme is lost if text can continue past its end.
        return f"{rule}: {terminal} {spelled(end.lstrip(), opaque_tokens)}\n{text}"
    return f"{rule}[lazy]: {terminal} {quoted(end)}\n{text}"


def one_line(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema that llguidance enforces exactly, with the options for JSON on one line.

    llguidance reads the options only at the top of a schema. Raises InvalidField without the name of a field.
    """
    whole, escapes = exact(schema)
    return {**whole, "x-guidance": {**_ONE_LINE, "json_allowed_escapes": escapes}}


def fits(schema: Mapping[str, Any]) -> str:
    """Return the Lark expression for JSON that matches a schema.

    If the schema is that of a custom tool with a Lark grammar (see `lark_of_text`), the expression contains this
    grammar as quoted text, which `lifted` later replaces by a reference.
    """
    if (source := lark_of_text(schema)) is not None:
        (name,) = schema["properties"]
        head, tail = quoted(f'{{"{name}": "'), quoted('"}')
        return f"{head} {_NESTED}{json.dumps(source)} {tail}"
    return f"%json {to_text(one_line(schema), ensure_ascii=False)}"


def lark_of_text(schema: Mapping[str, Any] | None) -> str | None:
    """Return the Lark grammar of a custom tool, whose schema has one text argument with this grammar.

    None for any other schema.
    """
    properties = (schema or {}).get("properties")
    if not isinstance(properties, dict) or len(properties) != 1:
        return None
    (text,) = properties.values()
    source = text.get(LARK) if isinstance(text, dict) and text.keys() == {"type", LARK} else None
    return source if isinstance(source, str) else None


def lifted(source: str) -> tuple[str, dict[str, str]]:
    """Replace the Lark grammars of custom tools, which `fits` has written into Lark rules, by references.

    Returns the rules, and the nested grammars, rewritten for text within JSON strings, keyed by the names in the
    references.
    """
    nested: dict[str, str] = {}

    def name(found: re.Match[str]) -> str:
        name = f"text_{len(nested)}"
        nested[name] = in_json(json.loads(found[1]), param="tools")
        return f"@{name}"

    return _NESTED_TEXT.sub(name, source), nested


def any_of(alternatives: Iterable[str]) -> str:
    """Return the Lark expression for exactly one of the given expressions."""
    return "(" + " | ".join(alternatives) + ")"


def separated(item: str, separator: str, *, several: bool) -> str:
    """Return the Lark expression for one item or, if `several`, one or more items with the text `separator`
    between.
    """
    if not several:
        return item
    return f"{item} ({quoted(separator)} {item})*" if separator else f"{item}+"
