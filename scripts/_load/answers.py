"""The content of an answer from any generating endpoint, in one piece or as events, and whether it ends once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

# Types of events that end a stream.
_ENDS = {
    "message_stop": "finished",
    "error": "error",
    "response.completed": "finished",
    "response.incomplete": "finished",
    "response.cancelled": "finished",
    "response.failed": "error",
}


class WrongAnswer(Exception):
    """An answer that breaks a promise; the message says which."""


@dataclass(frozen=True)
class Answer:
    """How it ended: `finished`, `refused` (with a status) or `error` (after it had begun), with the error's code or the
    finish reason; and what it said: the text, and the tokens with their log probabilities where they were asked for.
    """

    end: str
    reason: str
    text: str = ""
    tokens: tuple[Any, ...] = ()


def read_answer(status: int, body: bytes, *, streamed: bool) -> Answer:
    """The only terminal answer. Raises WrongAnswer if it is missing, repeated or followed by something."""
    if status != 200:
        return Answer("refused", _code(_object(body)))
    return _read_events(body) if streamed else _read_whole(_object(body))


def error_code(status: int, body: bytes) -> str:
    """The code of a refusal. Raises WrongAnswer if it gives no reason."""
    return read_answer(status, body, streamed=False).reason


def _read_whole(body: dict[str, Any]) -> Answer:
    if body.get("error"):
        raise WrongAnswer(f"status 200 with an error: {body['error']}")
    match body:
        case {"choices": [{"message": {"content": text}, "finish_reason": reason, "logprobs": logprobs}]}:
            return Answer("finished", reason, text or "", _tokens(logprobs))
        case {"choices": [{"text": text, "finish_reason": reason}]}:
            return Answer("finished", reason, text)
        case {"output": output, "status": reason}:
            return Answer("finished", reason, "".join(part["text"] for item in output for part in item["content"]))
        case {"type": "message", "content": content, "stop_reason": reason}:
            return Answer("finished", reason, "".join(block["text"] for block in content))
        case {"content": str(text), "finish_reason": reason}:
            return Answer("finished", reason, text, _tokens(body.get("logprobs")))
    raise WrongAnswer(f"an answer of no known form: {str(body)[:200]}")


def _read_events(body: bytes) -> Answer:
    text = ""
    tokens: list[Any] = []
    ends: list[tuple[str, str]] = []
    for event in _events(body):
        if ends and event != "[DONE]" and event.get("choices") != []:  # but for the usage
            raise WrongAnswer(f"after the end ({ends[0]}) came {str(event)[:200]}")
        if event == "[DONE]":
            if not ends or ends.count(("done", "")):
                raise WrongAnswer("[DONE] without an end before it, or twice")
            ends.append(("done", ""))
            continue
        said, scored = _said(event)
        text += said
        tokens += scored
        if end := _end(event):
            ends.append(end)
    if not ends:
        raise WrongAnswer("a stream without an end" + (f" after {text[-50:]!r}" if text else ""))
    return Answer(*ends[0], text, tuple(tokens))


def _events(body: bytes) -> Iterator[Any]:
    *whole, rest = body.decode().split("\n\n")
    if rest:
        raise WrongAnswer(f"a stream that ends within an event: {rest[:200]!r}")
    for event in whole:
        for line in event.split("\n"):
            if line.startswith("data: "):
                data = line.removeprefix("data: ")
                yield data if data == "[DONE]" else json.loads(data)


def _said(event: dict[str, Any]) -> tuple[str, tuple[Any, ...]]:
    match event:
        case {"choices": [{"delta": delta, "logprobs": logprobs}]}:
            return delta.get("content") or "", _tokens(logprobs)
        case {"choices": [{"text": text}]}:
            return text, ()
        case {"type": "response.output_text.delta", "delta": text}:
            return text, ()
        case {"type": "content_block_delta", "delta": {"text": text}}:
            return text, ()
        case {"token": text} if not event.get("done"):
            return text, _tokens(event.get("logprobs"))
    return "", ()


def _end(event: dict[str, Any]) -> tuple[str, str] | None:
    """How an event ends its stream, if it does."""
    kind = event.get("type", "")
    if kind in _ENDS:
        return _ENDS[kind], _code(event) if _ENDS[kind] == "error" else kind.rpartition(".")[2]
    if event.get("error"):
        return "error", _code(event)
    reasons = [choice["finish_reason"] for choice in event.get("choices", ()) if choice["finish_reason"]]
    reasons += [event["finish_reason"]] if event.get("done") else []
    return ("finished", reasons[0]) if reasons else None


def _tokens(logprobs: dict[str, Any] | None) -> tuple[Any, ...]:
    return tuple((token["token"], token["logprob"]) for token in (logprobs or {}).get("content") or ())


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except ValueError:
        raise WrongAnswer(f"not JSON: {body[:200]!r}") from None
    if not isinstance(found, dict):
        raise WrongAnswer(f"not an object: {body[:200]!r}")
    return found


def _code(body: dict[str, Any]) -> str:
    """The code of an error in any of the forms; every refusal has a reason."""
    error = body.get("error") or (body.get("response") or {}).get("error")
    if not isinstance(error, dict) or not error.get("message"):
        raise WrongAnswer(f"a refusal without a reason: {str(body)[:200]}")
    codes = ((error.get("details") or {}).get("error_code"), error.get("code"), error.get("type"))
    return next((str(code) for code in codes if code and code != "server_error"), "server_error")
