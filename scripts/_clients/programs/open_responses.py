"""Open Responses' compliance suite: its cases as of 2026-04-24, with the same requests and conditions.

The suite itself is in no registry. Its schemas are: the package `openresponses-py` has Open Responses' OpenAPI
document, by which all responses and events are judged here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from jsonschema import Draft202012Validator
from referencing import Registry
from referencing.jsonschema import DRAFT202012
from websockets.sync.client import connect

from _clients.programs.checks import MODEL, URL, check, equal, run

Json = dict[str, Any]
_SECONDS = 30.0
_DOCUMENT = json.loads(files("openresponses").joinpath("openapi/2026-04-24.json").read_text(encoding="utf-8"))
_REGISTRY: Registry[Any] = Registry().with_resource("doc", DRAFT202012.create_resource(_DOCUMENT))
_LAST = ("response.completed", "response.failed", "response.incomplete")
_WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather for a location",
    "parameters": {
        "type": "object",
        "properties": {
            "location": {"type": "string", "description": "The city and state, e.g. San Francisco, CA"},
        },
        "required": ["location"],
    },
}


def _message(role: str, content: str, **fields: str) -> Json:
    return {"type": "message", "role": role, **fields, "content": content}


def fits(value: object, schema: str) -> None:
    """Fail unless a value fits one of Open Responses' schemas."""
    validator = Draft202012Validator({"$ref": f"doc#/components/schemas/{schema}"}, registry=_REGISTRY)
    _fail_with(validator, value, schema)


def _fits_event(event: Json) -> None:
    """The same for an event of a stream."""
    content = _DOCUMENT["paths"]["/responses"]["post"]["responses"]["200"]["content"]
    names = [each["$ref"].rpartition("/")[2] for each in content["text/event-stream"]["schema"]["oneOf"]]
    for name in names:
        kinds = _DOCUMENT["components"]["schemas"][name]["properties"]["type"]["enum"]
        if event["type"] in kinds:
            fits(event, name)
            return
    raise AssertionError(f"no event has the type {event['type']}")


def _fail_with(validator: Draft202012Validator, value: object, name: str) -> None:
    for error in validator.iter_errors(value):
        raise AssertionError(f"{name}.{'.'.join(map(str, error.absolute_path))}: {error.message}"[:300])


def _post(path: str, body: Json) -> tuple[int, Any]:
    request = Request(f"{URL}/v1{path}", json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urlopen(request, timeout=_SECONDS) as response:
            return response.status, response.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def _ask(input: object, **fields: object) -> Json:
    """A whole response."""
    status, text = _post("/responses", {"model": MODEL, "input": input, **fields})
    equal((status, text if status != 200 else ""), (200, ""))
    response: Json = json.loads(text)
    fits(response, "ResponseResource")
    equal(bool(response["output"]), True)
    return response


def _stream(input: object, **fields: object) -> list[Json]:
    """The events of a response."""
    status, text = _post("/responses", {"model": MODEL, "input": input, "stream": True, **fields})
    equal(status, 200)
    events = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]
    for event in events:
        _fits_event(event)
    fits(events[-1]["response"], "ResponseResource")
    return events


def _kinds(response: Json) -> list[str]:
    return [item["type"] for item in response["output"]]


Step = Json | Callable[[Sequence[Json]], Json]


def _turns(*steps: Step) -> list[Json]:
    """The last event of each turn on one WebSocket."""
    ended: list[Json] = []
    with connect(f"ws{URL.removeprefix('http')}/v1/responses", additional_headers={"authorization": "Bearer x"}) as one:
        for step in steps:
            body = step(ended) if callable(step) else step
            one.send(json.dumps({"type": "response.create", "model": MODEL, **body}))
            for event in _events(one.recv):
                if event["type"] == "error":
                    fits(event, "WebSocketErrorEvent")
                else:
                    _fits_event(event)
                if event["type"] in (*_LAST, "error"):
                    ended.append(event)
                    break
    return ended


def _events(receive: Callable[[float], Any]) -> Iterator[Json]:
    while True:
        yield json.loads(receive(_SECONDS))


def _is_complete(event: Json) -> None:
    equal(event["type"], "response.completed")
    fits(event["response"], "ResponseResource")
    equal(event["response"]["status"], "completed")


def _code(event: Mapping[str, Any]) -> object:
    return (event.get("error") or event.get("response", {}).get("error") or {}).get("code")


def _from(ended: Sequence[Json], input: object) -> Json:
    return {"store": False, "previous_response_id": ended[0]["response"]["id"], "input": input}


@check("basic-response")
def basic_response() -> None:
    equal(_ask([_message("user", "Say hello in exactly 3 words.")])["status"], "completed")


@check("assistant-phase")
def assistant_phase() -> None:
    items = [
        _message("assistant", "I should answer with the saved number.", phase="commentary"),
        _message("assistant", "The number is four.", phase="final_answer"),
        _message("user", "Repeat only the number."),
    ]
    equal(_ask(items)["status"], "completed")


@check("streaming-response")
def streaming_response() -> None:
    _is_complete(_stream([_message("user", "Count from 1 to 5.")])[-1])


@check("websocket-response")
def websocket_response() -> None:
    (ended,) = _turns({"input": [_message("user", "Count from 1 to 3.")]})
    _is_complete(ended)


@check("websocket-sequential-responses")
def websocket_sequential_responses() -> None:
    asked = [{"store": False, "input": f"Reply with exactly: {word}"} for word in ("first", "second")]
    for ended in _turns(*asked):
        _is_complete(ended)


@check("websocket-continuation")
def websocket_continuation() -> None:
    first = {"store": False, "input": "Remember the code word: cobalt. Reply with OK."}
    question = "What is the code word? Reply with only the code word."
    for ended in _turns(first, lambda ended: _from(ended, question)):
        _is_complete(ended)


@check("websocket-reconnect-store-false-recovery")
def websocket_reconnect() -> None:
    first = _turns({"store": False, "input": "Remember the code word: copper. Reply with OK."})
    _is_complete(first[0])
    recovery = [
        _message(
            "user",
            "The previous store:false chain could not continue after reconnect. Start a new response and reply with "
            "exactly: recovered",
        )
    ]
    again = _from(first, "Try to continue after reconnect. Reply with exactly: reconnected")
    missed, recovered = _turns(again, {"store": False, "input": recovery})
    equal(_code(missed), "previous_response_not_found")
    _is_complete(recovered)


@check("websocket-previous-response-not-found")
def websocket_previous_not_found() -> None:
    input = "This should fail because the previous response is missing."
    (ended,) = _turns({"store": False, "previous_response_id": "resp_openresponses_missing_1", "input": input})
    equal(_code(ended), "previous_response_not_found")


@check("websocket-failed-continuation-evicts-cache")
def websocket_failed_continuation() -> None:
    orphan = {
        "type": "function_call_output",
        "call_id": "call_openresponses_missing",
        "output": "No matching tool call exists in the previous response.",
    }
    first, failed, stale = _turns(
        {"store": False, "input": "Remember the code word: ember. Reply with OK."},
        lambda ended: _from(ended, [orphan]),
        lambda ended: _from(ended, "Try to continue after the failed turn. Reply with exactly: stale"),
    )
    _is_complete(first)
    equal(failed["type"] in ("error", "response.failed"), True)
    equal(_code(stale), "previous_response_not_found")


@check("websocket-compact-new-chain")
def websocket_compact() -> None:
    said = (
        ("user", "input_text", "Remember the compaction code word: slate."),
        ("assistant", "output_text", "OK."),
        ("user", "input_text", "Compress this conversation for later continuation."),
    )
    items = [{"type": "message", "role": role, "content": [{"type": kind, "text": text}]} for role, kind, text in said]
    status, text = _post("/responses/compact", {"model": MODEL, "input": items})
    equal(status, 200)
    more = _message("user", "Continue from here. Reply with exactly: compacted")
    (ended,) = _turns({"store": False, "input": [*json.loads(text)["output"], more], "tools": []})
    _is_complete(ended)


@check("system-prompt")
def system_prompt() -> None:
    items = [
        _message("system", "You are a pirate. Always respond in pirate speak."),
        _message("user", "Say hello."),
    ]
    equal(_ask(items)["status"], "completed")


@check("tool-calling")
def tool_calling() -> None:
    asked = [_message("user", "What's the weather like in San Francisco?")]
    equal("function_call" in _kinds(_ask(asked, tools=[_WEATHER])), True)


@check("multi-turn")
def multi_turn() -> None:
    items = [
        _message("user", "My name is Alice."),
        _message("assistant", "Hello Alice! Nice to meet you. How can I help you today?"),
        _message("user", "What is my name?"),
    ]
    equal(_ask(items)["status"], "completed")


@check("compact-response")
def compact_response() -> None:
    items = [
        _message("user", "We agreed to launch on Tuesday and notify support first."),
        _message("assistant", "Understood. The launch is Tuesday, with support notified beforehand."),
    ]
    asked = {"model": MODEL, "prompt_cache_key": "openresponses-compact-test", "input": items}
    status, text = _post("/responses/compact", asked)
    equal(status, 200)
    compacted = json.loads(text)
    fits(compacted, "CompactResource")
    equal(compacted["object"], "response.compaction")
    equal("compaction" in _kinds(compacted), True)


@check("compact-missing-model")
def compact_missing_model() -> None:
    status, _ = _post("/responses/compact", {"input": [_message("user", "Compact this conversation.")]})
    equal(status in (400, 422), True)


run()
