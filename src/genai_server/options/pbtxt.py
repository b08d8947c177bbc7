"""Reads protobuf's text format, in which Triton's config.pbtxt is written, without a schema.

protobuf's own parser needs a schema and drops unknown fields, but the translation of a Triton configuration must report
every field that it leaves out. Only protobuf's tokenizer is used.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from google.protobuf import text_format

from genai_server.errors import ConfigurationError, quoted

# Every value of a field, in order: numbers and words as text.
Message = dict[str, list["str | Message"]]

_WORD = re.compile(r"-?[\w.+-]+")
# Triton's own example for TensorRT continues an accelerator that a brace has closed already.
_SURPLUS = "; if this belongs to the message before, as in Triton's example for TensorRT, remove the '}' that closes it"
_CLOSED_BY = {"{": "}", "<": ">"}


def read_pbtxt(text: str, name: str) -> Message:
    """Parse a text in protobuf's text format, and return the values of each field by name.

    Raises ConfigurationError for other texts. The message has the name of the file, `name`, and line and column.
    """
    tokenizer: Any = text_format.Tokenizer(text.splitlines())
    try:
        return _message(tokenizer, end="")
    except text_format.ParseError as error:
        raise ConfigurationError(f"{name}:{error}") from None


def messages(values: Iterable["str | Message"]) -> Iterator[Message]:
    """Yield those of a field's values that are messages; the others are text."""
    return (value for value in values if isinstance(value, dict))


def _message(tokenizer: Any, end: str) -> Message:
    fields: Message = {}
    while not (tokenizer.AtEnd() if not end else tokenizer.TryConsume(end)):
        if tokenizer.AtEnd():
            raise tokenizer.ParseError(f"expected {quoted(end)}")
        name = tokenizer.ConsumeIdentifier()
        colon = tokenizer.TryConsume(":")
        fields.setdefault(name, []).extend(_values(tokenizer, colon=colon))
        if not tokenizer.TryConsume(","):
            tokenizer.TryConsume(";")
    return fields


def _values(tokenizer: Any, *, colon: bool) -> list["str | Message"]:
    if not tokenizer.TryConsume("["):
        return [_value(tokenizer, colon=colon)]
    found: list[str | Message] = []
    while not tokenizer.TryConsume("]"):
        if found:
            if not tokenizer.TryConsume(","):
                raise tokenizer.ParseError("expected ',' or ']'" + (_SURPLUS if isinstance(found[-1], dict) else ""))
            if tokenizer.TryConsume("]"):
                break
        found.append(_value(tokenizer, colon=colon))
    return found


def _value(tokenizer: Any, *, colon: bool) -> "str | Message":
    for opening, closing in _CLOSED_BY.items():
        if tokenizer.TryConsume(opening):
            return _message(tokenizer, closing)
    if not colon:
        raise tokenizer.ParseError("expected ':' or '{'")
    if tokenizer.token[:1] in "\"'":
        text: str = tokenizer.ConsumeString()
        return text
    word: str = ("-" if tokenizer.TryConsume("-") else "") + tokenizer.token
    if not _WORD.fullmatch(word):
        raise tokenizer.ParseError("expected a value")
    tokenizer.NextToken()
    return word
