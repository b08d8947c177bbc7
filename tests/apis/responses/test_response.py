"""Responses and the events of their streams as OpenAI's client parses them."""

from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from genai_server.answer_parts import (
    Content,
    Part,
    Reasoning,
    ScoredToken,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from genai_server.apis.responses.response import ResponseBuilder
from genai_server.apis.responses.schemas import ResponsesRequest
from genai_server.apis.responses.translate import new_response, tools_by_name
from genai_server.errors import RunnerFailed
from genai_server.generation.answers import Ending
from genai_server.http.telemetry.request_record import Usage
from genai_server.messages.generation_request import FinishReason, Sampling
from tests.answer_parts import PARTS

ENDED = Ending()
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
USAGE = Usage(3, 4, cached=2, reasoning=1)


def _builder(*, is_encrypted: bool = False, **fields: Any) -> ResponseBuilder:
    body = ResponsesRequest.model_validate({"input": "x", **fields})
    begun = new_response(body, model="m", sampling=Sampling(temperature=0.5), created=1234, is_stored=True)
    return ResponseBuilder(begun, is_encrypted=is_encrypted)


def _add(build: ResponseBuilder, parts: list[Part]) -> list[dict[str, Any]]:
    return [event for part in parts for event in build.add([part], [])]


def _whole(parts: list[Part], ending: Ending = ENDED) -> Response:
    build = _builder()
    _add(build, parts)
    build.finish(ending, USAGE, 1240)
    return Response.model_validate(build.response)


def _summary(event: dict[str, Any]) -> str:
    """An event in short: its type without the prefix, and its text."""
    name: str = event["type"].removeprefix("response.")
    return f"{name} {event['delta']}" if "delta" in event else name


def test_events_come_in_openais_order() -> None:
    build = _builder()
    events = [*build.begin(), *_add(build, PARTS[:8]), *build.finish(ENDED, USAGE, 1240)]
    assert [_summary(event) for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta so",
        "reasoning_text.delta  be it",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta Hel",
        "output_text.delta lo",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        'function_call_arguments.delta {"a": ',
        "function_call_arguments.delta 1}",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    assert [event["output_index"] for event in events[2:-1]] == [0] * 7 + [1] * 7 + [2] * 5


def test_items_start_empty_and_end_as_in_the_response() -> None:
    build = _builder()
    events = [*_add(build, PARTS), *build.finish(ENDED, USAGE, 1240)]
    added = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert [item["status"] for item in added] == ["in_progress"] * 4
    assert [item.get("content", item.get("arguments")) for item in added] == [[], [], "", ""]
    assert done == build.response["output"] == events[-1]["response"]["output"]
    assert [item["id"] for item in added] == [item["id"] for item in done]


def test_the_first_events_have_no_output_whatever_comes_later() -> None:
    build = _builder()
    first = build.begin()
    _add(build, PARTS)
    assert [(event["response"]["status"], event["response"]["output"]) for event in first] == [("in_progress", [])] * 2


def test_answer_at_its_limit_and_its_last_item_are_incomplete() -> None:
    read: Any = _whole(PARTS[:6], Ending(FinishReason.LENGTH))
    assert (read.status, read.completed_at) == ("incomplete", None)
    assert read.incomplete_details.to_dict() == {"reason": "max_output_tokens"}
    assert [item.status for item in read.output] == ["completed", "completed", "incomplete"]


@pytest.mark.parametrize("more", [[], [Content("!")]])
def test_response_with_an_incomplete_call_is_incomplete(more: list[Part]) -> None:
    build = _builder()
    cut: list[Part] = [ToolCallStart(0, "call_1", "add"), ToolCallArguments(0, '{"a'), ToolCallEnd(0, False)]
    events = [*_add(build, [*cut, *more]), *build.finish(Ending(has_incomplete_call=True), USAGE, 1240)]
    read: Any = Response.model_validate(build.response)
    assert (read.output[0].type, read.output[0].status, read.status) == ("function_call", "incomplete", "incomplete")
    assert read.incomplete_details.to_dict() == {"reason": "max_output_tokens", "genai_finish_reason": "stop"}
    assert "function_call_arguments.done" not in [_summary(event) for event in events]


@pytest.mark.parametrize("parts", [[], PARTS[:1]])
def test_a_complete_answer_has_a_message_even_if_it_is_empty(parts: list[Part]) -> None:
    message: Any = _whole(parts).output[-1]
    (part,) = message.content
    assert message.type == "message"
    assert part.to_dict() == {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    cut = _whole(parts, Ending(FinishReason.LENGTH))
    assert (cut.output_text, len(cut.output)) == ("", len(parts))


def test_a_failure_after_the_end_changes_nothing() -> None:
    build = _builder()
    (*_, last) = build.finish(ENDED, USAGE, 1240)
    again = build.fail(RunnerFailed("late"), USAGE)
    assert {**again, "sequence_number": last["sequence_number"]} == last


def test_a_response_repeats_what_was_asked_for() -> None:
    asked: dict[str, Any] = {
        "instructions": "Be brief.",
        "max_output_tokens": 7,
        "metadata": {"a": "b"},
        "parallel_tool_calls": False,
        "previous_response_id": "resp_1",
        "reasoning": {"effort": "low"},
        "safety_identifier": "s",
        "text": {
            "format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True},
            "verbosity": "medium",
        },
        "tool_choice": {"type": "function", "name": "add"},
        "tools": [{"type": "function", "name": "add", "parameters": {"type": "object"}}],
        "top_logprobs": 0,
        "truncation": "disabled",
        "user": "u",
    }
    read = Response.model_validate(_builder(**asked).response)
    repeated = read.model_dump(exclude_none=True, by_alias=True)
    assert {name: repeated[name] for name in asked} == asked
    assert (read.temperature, read.top_p, read.model, read.created_at) == (0.5, 1.0, "m", 1234)


def test_unset_fields_have_openais_defaults() -> None:
    read: Any = Response.model_validate(_builder().response)
    assert (read.tool_choice, read.parallel_tool_calls, read.text.format.type) == ("auto", True, "text")
    assert (read.metadata, read.tools, read.background) == ({}, [], False)


def test_encrypted_reasoning_is_returned_only_on_request() -> None:
    for is_encrypted in (False, True):
        build = _builder(is_encrypted=is_encrypted)
        build.add([Reasoning("so")], [])
        assert ("encrypted_content" in build.response["output"][0]) is is_encrypted


def test_log_probabilities_are_those_of_the_message_alone() -> None:
    build = _builder()
    events: list[Any] = []
    written: list[tuple[list[Part], list[bytes]]] = [
        ([Reasoning("so")], [b"<think>", b"so"]),
        ([], [b"</think>", b"\n"]),
        ([Content("é<")], [b"\xc3", b"\xa9", b"<"]),
        ([], [b"<tool"]),
        ([Content("<toolbox")], [b"box"]),
        ([ToolCallStart(0, "call_1", "add")], [b"add"]),
    ]
    for parts, texts in written:
        events += build.add(parts, [ScoredToken(text, -0.5, (ScoredToken(text, -0.5),)) for text in texts])
    events += build.finish(ENDED, USAGE, 1240)
    message: Any = Response.model_validate(build.response).output[1]
    (part,) = message.content
    assert [bytes(one.bytes) for one in part.logprobs] == [b"\xc3", b"\xa9", b"<", b"<tool", b"box"]
    assert [one.top_logprobs[0].logprob for one in part.logprobs] == [-0.5] * 5
    read = [EVENTS.validate_python(event) for event in events if "response.output_text." in event["type"]]
    assert [(event.type[21:], len(event.logprobs)) for event in read] == [("delta", 3), ("delta", 2), ("done", 5)]


def _patched(
    ending: Ending, *more: Part, arguments: str, is_complete: bool = True
) -> tuple[list[dict[str, Any]], list[Any]]:
    """The events and the items of an answer that calls the tool apply_patch."""
    body = ResponsesRequest.model_validate({"input": "x", "tools": [{"type": "apply_patch"}]})
    begun = new_response(body, model="m", sampling=Sampling(), created=1234, is_stored=True)
    build = ResponseBuilder(begun, tools=tools_by_name(body))
    parts: list[Part] = [ToolCallStart(0, "c", "apply_patch"), ToolCallArguments(0, arguments)]
    events = _add(build, [*parts, ToolCallEnd(0, is_complete=is_complete), *more])
    build.finish(ending, USAGE, 1240)
    return events, [item.to_dict() for item in Response.model_validate(build.response).output]


def test_a_deletion_has_no_diff() -> None:
    _, (call,) = _patched(ENDED, arguments='{"type": "delete_file", "path": "a", "diff": ""}')
    assert (call["type"], call["operation"]) == ("apply_patch_call", {"type": "delete_file", "path": "a"})


def test_items_after_a_hidden_patch_are_numbered_without_a_gap() -> None:
    cut = Ending(has_incomplete_call=True)
    events, (said,) = _patched(cut, Content("sorry"), arguments="{", is_complete=False)
    assert (events[0]["type"], events[0]["output_index"]) == ("response.output_item.added", 0)
    assert said["type"] == "message"
