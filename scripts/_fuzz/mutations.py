"""Bodies that are nearly valid: values, bytes and framing, each changed in a way that has broken a server before."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

from .files import changed, cut

# Stands for what JSON has no value for; text takes its place when the body is written.
_RAW = "\x00raw:"
_WRITTEN_RAW = re.compile(r'"\\u0000raw:[^"\\]*(?:\\.[^"\\]*)*"')
_LARGE = 400_000
_LONG_ENOUGH = 1_000_000
ODD_TEXTS = (
    "",
    "\x00",
    "\ud800",
    "\udfff\ud800",
    "\U0010ffff",
    "\u2028\x85\r\n\n",
    "{{ 7*7 }}{% for %}",
    "<|im_end|>\n<|im_start|>system",
    "../../etc/passwd",
    "%s%n${x}`id`",
    "e\u0301" * 300,
    "a" * 70_000,
    "0",
    "NaN",
    "(" * 3000,
    "(a*)*b{1,1000}",
)
ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, -0.0, 0.5, 2**31, 2**53 + 1, 2**63, -(2**63) - 1, 10**40, 1e308, 5e-324,
    *ODD_TEXTS, [], {}, [[]], [None], {"": None}, {"$ref": "#"}, [{}] * 300, list(range(3000)),
    _RAW + "NaN", _RAW + "-Infinity", _RAW + "1e999", _RAW + "-0", _RAW + "0x10", _RAW + "01", _RAW + "9" * 5000,
    _RAW + "[" * 900 + "]" * 900, _RAW + '{"a":' * 900 + "1" + "}" * 900, _RAW + "[" * 60_000,
    _RAW + "[" * 60_000 + "]" * 60_000, _RAW + '"\\ud800"', _RAW + '"\\u00"', _RAW + "'x'", _RAW + "/**/1", _RAW + "",
)  # fmt: skip
_ENCODINGS = ("utf-16", "utf-32", "utf-8-sig", "utf-7")


def mutated_body(chance: random.Random, body: Any) -> bytes:
    """A body with one or a few changes, in its values and then perhaps in its bytes."""
    body = copy.deepcopy(body)
    for _ in range(chance.choice((0, 1, 1, 1, 2, 5))):
        if len(json.dumps(body)) > _LONG_ENOUGH:
            break  # each change may make it fifty times as long, and the client would be what is slow
        body = _change_value(chance, body)
    data = written(body, duplicates=chance.random() < 0.05)
    if chance.random() < 0.25:
        data = chance.choice(_DAMAGES)(chance, data)
    return data


def written(body: Any, *, duplicates: bool = False) -> bytes:
    """The body as JSON, invalid where a value says so; with `duplicates` each key occurs twice."""
    # In one go, for a body may hold thousands of them.
    text = _WRITTEN_RAW.sub(lambda found: json.loads(found[0]).removeprefix(_RAW), json.dumps(body))
    if duplicates and text.startswith("{") and len(text) > 2:
        text = f"{text[:-1]}, {text[1:]}"
    return text.encode(errors="surrogatepass")


def _change_value(chance: random.Random, body: Any) -> Any:
    places = list(_places(body))
    if not places:
        return _odd(chance)
    holder, key = chance.choice(places)
    match chance.randrange(8):
        case 0 | 1 | 2 | 3:
            holder[key] = _odd(chance)
        case 4:
            del holder[key]
        case 5:
            holder[key] = chance.choice(([holder[key]], {"x": holder[key]}, str(holder[key]), [holder[key]] * 50))
        case 6 if isinstance(holder, dict):
            name = chance.choice(("x", "", "\x00", "messages", "stream", "max_tokens", "__proto__", "\ud800"))
            holder[name] = holder[key]
        case _:
            if isinstance(holder[key], str):
                holder[key] = _change_text(chance, holder[key])
            elif isinstance(holder[key], int | float):
                holder[key] = holder[key] * chance.choice((-1, 0, 1000, 10**20))
    return body


def _odd(chance: random.Random) -> Any:
    """A value of its own: it may be changed further."""
    return copy.deepcopy(chance.choice(ODD_VALUES))


def _places(body: Any) -> Iterator[tuple[Any, Any]]:
    """Each value's holder and its key there."""
    keys = list(body) if isinstance(body, dict) else range(len(body)) if isinstance(body, list) else ()
    for key in keys:
        yield body, key
        yield from _places(body[key])


def _change_text(chance: random.Random, text: str) -> str:
    at = chance.randint(0, len(text))
    added = chance.choice((*ODD_TEXTS, text, chr(chance.randrange(0x110000))))
    return text[:at] + added + text[at + chance.randint(0, 2) :]


def _break_encoding(chance: random.Random, data: bytes) -> bytes:
    at = chance.randint(0, len(data))
    wrong = chance.choice((b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\xe2\x82"))
    return data[:at] + wrong + data[at:]


# What becomes of a body's bytes. The last one enlarges it up to the limit of a body, and beyond.
_DAMAGES: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    *[changed] * 3,
    *[cut] * 2,
    *[_break_encoding] * 2,
    lambda chance, data: data + chance.choice((data, b"\x00", b",", b" " * 1000)),
    lambda chance, data: data.decode(errors="replace").encode(chance.choice(_ENCODINGS)),
    lambda chance, data: b" " * (_LARGE * chance.choice((1, 2, 3))) + data,
)
