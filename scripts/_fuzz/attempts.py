"""Requests as they go over the wire: a body in a framing that may also be wrong."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .corpus import BODIES, CONTENT_TYPES, CONVERSATION, ODD_HEADERS, RESPONSE
from .floods import Place, flooded
from .mutations import mutated_body

# Such a body takes as long to send as a hundred others.
_FLOODS = 0.03
# Requests that name something stored, of those whose path does.
_EXISTING = 0.7
# A server gives up on a body that is so long, or on a header that is no HTTP, while it is still being sent.
_DRAINED = 8 * 1024 * 1024
_NO_HTTP = "authorization: Bearer \x01"


@dataclass(frozen=True)
class Attempt:
    """The bytes to send, to which path; `is_whole` if the request is complete, so that there must be an answer."""

    path: str
    data: bytes
    is_whole: bool


def attempt(seed: int, number: int, endpoints: Mapping[str, Sequence[Place]]) -> Attempt:
    """The same for the same seed, number and endpoints, which have places for floods by their paths."""
    chance = random.Random(f"{seed}-{number}")
    path = sorted(endpoints)[number % len(endpoints)]
    valid = chance.choice(BODIES.get(path) or [{}])
    if endpoints[path] and chance.random() < _FLOODS:
        body = flooded(chance, valid, chance.choice(endpoints[path]))
    else:
        body = mutated_body(chance, valid)
    target = path
    if chance.random() < _EXISTING:
        target = target.replace("{conversation_id}", CONVERSATION).replace("{response_id}", RESPONSE)
    target = target.replace("{", "").replace("}", "")
    if chance.random() < 0.02:
        target += chance.choice(("?a=1&a=2", "?%00", "/", "//..", "?" + "q" * 3000))
    headers = ["host: 127.0.0.1", "connection: close"]
    kind = CONTENT_TYPES[0] if chance.random() < 0.93 else chance.choice(CONTENT_TYPES)
    headers.append(f"content-type: {kind}")
    if chance.random() < 0.1:
        headers.append(chance.choice([*ODD_HEADERS, _NO_HTTP]))
    framing, sent, is_whole = _framed(chance, body)
    head = f"POST {target} HTTP/1.1\r\n" + "".join(f"{line}\r\n" for line in [*headers, *framing]) + "\r\n"
    is_whole = is_whole and len(body) < _DRAINED and _NO_HTTP not in headers
    return Attempt(path, head.encode("latin-1") + sent, is_whole)


def _framed(chance: random.Random, body: bytes) -> tuple[list[str], bytes, bool]:
    """Headers, what follows them, and whether that is all that they announce."""
    length = [f"content-length: {len(body)}"]
    match chance.randrange(40):
        case 0 | 1 | 2:
            return ["transfer-encoding: chunked"], _chunked(chance, body) + b"0\r\n\r\n", True
        case 3:
            end = chance.choice((b"", b"-1\r\n", b"zz\r\n"))
            return ["transfer-encoding: chunked"], _chunked(chance, body) + end, False
        case 4:
            return [f"content-length: {len(body) + 10}"], body, False
        case 5:
            return length, body[: len(body) // 2], not body
        case 6:
            wrong = (["content-length: -5"], ["content-length: x"], [*length, "content-length: 1"])
            return chance.choice(wrong), body, False
        case 7:
            return [*length, "transfer-encoding: chunked"], body, False
    return length, body, True


def _chunked(chance: random.Random, body: bytes) -> bytes:
    size = max(chance.choice((1, 7, 1000, 60_000)), len(body) // 500)
    parts: list[Any] = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x%s\r\n%s\r\n" % (len(part), chance.choice((b"", b";a=b")), part) for part in parts)


def complaint_about(status: int, body: bytes) -> str | None:
    """The reason why an answer is unacceptable; None if it is not."""
    if status >= 500 and status != 503:
        return f"status {status}: {body[:300]!r}"
    if b"internal error" in body:
        return f"an internal error in a stream: {body[-300:]!r}"
    has_reason = any(form in body for form in (b'"message":', b'{"error":"', b"Invalid HTTP"))
    if status >= 400 and not has_reason:
        return f"status {status} without a reason: {body[:300]!r}"
    return None
