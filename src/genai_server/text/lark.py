"""Pieces of grammars in llguidance's dialect of Lark (llguidance documentation, "Syntax of LLGuidance Grammars").

JSON comes on one line with ", " and ": " between, as chat templates show it to models: where whitespace is flexible, a
model can write spaces until its tokens are used up.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

_ONE_LINE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def quoted(text: str) -> str:
    """Exactly this text."""
    return json.dumps(text, ensure_ascii=False)


def marker(text: str, special_tokens: Mapping[str, int]) -> str:
    """A marker of a format: the special token, where the tokenizer has one, which its text would not allow."""
    return f"<[{special_tokens[text]}]>" if text in special_tokens else quoted(text)


def one_line(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with the options of llguidance for JSON on one line; it looks for them at the top only."""
    return {**schema, "x-guidance": _ONE_LINE}


def fits(schema: Mapping[str, Any]) -> str:
    """JSON that fits a JSON schema."""
    return "%json " + json.dumps(one_line(schema))


def any_of(alternatives: Iterable[str]) -> str:
    """One of these expressions."""
    return "(" + " | ".join(alternatives) + ")"


def separated(item: str, separator: str, *, several: bool) -> str:
    """One item or, if `several`, one or more with the text `separator` between."""
    return f"{item} ({quoted(separator)} {item})*" if several else item
