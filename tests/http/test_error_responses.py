"""The table of errors and HTTP statuses."""

import asyncio
import gc
import json
import weakref
from typing import Any

import pytest
from anthropic.types import ErrorResponse
from starlette.types import Message, Scope

from genai_server.apis.app import DIALECTS
from genai_server.apis.messages.errors import ANTHROPIC
from genai_server.apis.ollama.translate import OLLAMA
from genai_server.errors import (
    ALL_ERRORS,
    EngineDied,
    GenaiServerError,
    InvalidField,
    ModelNotFound,
    NoEngineReady,
    PromptTooLong,
    QueueFull,
    ServerStopping,
)
from genai_server.generation.dependencies import while_connected
from genai_server.http.error_responses import error_body, error_response, from_findings, http_status
from genai_server.http.error_wording import DEFAULT, Dialect, ErrorParts, FieldNames
from genai_server.http.leniency import Leniency
from genai_server.http.request_state import start_request
from tests.running_server import RunningServer


@pytest.mark.parametrize("error", ALL_ERRORS, ids=lambda error: error.__name__)
def test_every_error_has_a_status_and_a_body(error: type[GenaiServerError]) -> None:
    is_of_field = issubclass(error, InvalidField)
    raised = error("where", "is wrong") if is_of_field else error("what", param="where")  # type: ignore[call-arg]
    status, kind = http_status(raised)
    assert 400 <= status < 600
    message = "where is wrong" if is_of_field else "what"
    assert error_body(raised) == {"error": {"message": message, "type": kind, "param": "where", "code": error.code}}


def test_a_refused_request_does_not_hold_its_body() -> None:
    class Body:
        pass

    async def refused(body: Body) -> None:
        raise InvalidField("a", "is wrong")

    async def connected() -> Message:
        return await asyncio.Future()

    async def run() -> "weakref.ref[Body]":
        body = Body()
        held = weakref.ref(body)
        try:
            with Leniency().with_names(FieldNames()):
                await while_connected(refused(body), connected)
        except InvalidField as error:
            error_response(error, scope)
        return held

    scope: Scope = {"type": "http", "method": "POST", "path": "/v1/messages", "headers": []}
    start_request(scope)
    gc.disable()
    try:
        assert asyncio.run(run())() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("error", "status", "retry_after"),
    [
        (InvalidField("a", "is wrong"), 400, None),
        (ModelNotFound("x"), 404, None),
        (EngineDied("x"), 500, None),
        (NoEngineReady("x"), 503, "1"),
        (QueueFull("x", retry_after=17), 503, "17"),
        (ServerStopping(), 503, "1"),
    ],
)
def test_status_follows_whose_fault_it_is_and_temporary_errors_say_when_to_retry(
    error: GenaiServerError, status: int, retry_after: str | None
) -> None:
    scope: dict[str, Any] = {"path": "/v1/chat", "headers": []}
    start_request(scope)
    response = error_response(error, scope)
    assert (response.status_code, response.headers.get("retry-after")) == (status, retry_after)


@pytest.mark.parametrize(
    ("method", "path", "status", "allowed"),
    [
        ("GET", "/nowhere", 404, None),
        ("GET", "/v1/chat", 405, "POST"),
        ("DELETE", "/v1/admin/runtime_options", 405, "GET, HEAD, POST"),
        ("PUT", "/v1/responses/resp_1", 405, "DELETE, GET, HEAD"),
        ("PUT", "/v1/responses/input_tokens", 405, "POST"),
    ],
)
def test_unknown_paths_and_methods_answer_in_the_same_form(
    scripted: RunningServer, method: str, path: str, status: int, allowed: str | None
) -> None:
    response = scripted.client.request(method, path)
    assert (response.status_code, response.headers.get("allow")) == (status, allowed)
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


def test_a_wrong_value_in_a_query_is_named(scripted: RunningServer) -> None:
    query = scripted.client.get("/v1/requests/ended?since=abc").json()["error"]
    assert query["message"] == 'since must be a number; given "abc"'


@pytest.mark.parametrize("path", ["/v1/chat", "/v1/messages", "/v1/responses", "/v1/admin/runtime_options"])
def test_field_name_that_is_not_unicode_is_refused_escaped(scripted: RunningServer, path: str) -> None:
    response = scripted.client.post(path, content=b'{"a\\ud800": 1}', headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert r"a\ud800" in response.json()["error"]["message"]


def test_long_value_is_quoted_by_its_beginning_only() -> None:
    written = 0

    class Item:
        def __repr__(self) -> str:
            nonlocal written
            written += 1
            return "x"

    items = [Item() for _ in range(10_000)]
    cases: list[tuple[Any, str]] = [
        (items, '["x", "x", "x"'),
        ([[items, []]] * 3, '[[["x", "x"'),
        ({"a": {}, "b": items}, '{"a": {}, "b": ["x", "x"'),
        ("a" * 1000, '"aaaaa'),
    ]
    for value, begin in cases:
        finding: dict[str, Any] = {"type": "list_type", "loc": ("body", "field"), "input": value, "msg": ""}
        message = from_findings([finding], {"field": value}).message
        assert message.startswith(f"field must be a list; given {begin}")
        assert message.endswith("…")
        assert len(message) < 150
    assert written < 500
    given: dict[str, Any] = {"a": [1, {}, []], "b": None, "c": [], "d": "it's"}
    finding = {"type": "list_type", "loc": ("body", "field"), "input": given, "msg": ""}
    assert from_findings([finding], {}).message.endswith(f"given {json.dumps(given)}")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *[(400, "invalid_request_error"), (401, "authentication_error"), (403, "permission_error")],
        *[(404, "not_found_error"), (405, "invalid_request_error"), (429, "rate_limit_error")],
        *[(500, "api_error"), (503, "overloaded_error")],
    ],
)
def test_each_status_has_one_of_anthropics_types(status: int, kind: str) -> None:
    error = ErrorParts(status, "server_error", "what", "why", request_id="req-1")
    read = ErrorResponse.model_validate(ANTHROPIC.error_body(error))
    assert (read.type, read.error.type, read.error.message, read.request_id) == ("error", kind, "what", "req-1")
    assert read.error.to_dict()["details"] == {"error_code": "why"}


@pytest.mark.parametrize(
    ("path", "headers", "dialect"),
    [
        ("/v1/messages", [], ANTHROPIC),
        ("/messages/count_tokens", [], ANTHROPIC),
        ("/v1/models", [], None),
        ("/v1/models/x", [(b"anthropic-version", b"1")], ANTHROPIC),
        ("/api/chat", [], OLLAMA),
        ("/api/v1/models", [], None),
        ("/v1/responses", [(b"anthropic-version", b"1")], None),
    ],
)
def test_the_path_determines_the_format(path: str, headers: list[Any], dialect: Dialect | None) -> None:
    scope = {"type": "http", "method": "GET", "path": path, "headers": headers}
    assert start_request(scope, dialects=DIALECTS).dialect is (dialect or DEFAULT)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/chat/completions", ("prompt", 20, "GENAI_X")),
        ("/v1/messages", ("prompt is too long: 30 tokens > 20", "GENAI_X")),
        ("/api/chat", ("exceeds the context length", 30, 20, "GENAI_X")),
    ],
)
def test_each_api_has_its_words_for_a_prompt_that_is_too_long(path: str, expected: tuple[object, ...]) -> None:
    scope: Scope = {"type": "http", "method": "POST", "path": path, "headers": []}
    start_request(scope, dialects=DIALECTS)
    error = PromptTooLong("prompt", "is long", tokens=30, limit=20, limited_by="GENAI_X")
    text = json.dumps(error_body(error, scope))
    assert all(str(part) in text for part in expected)
