"""Messages and the events of their streams as Anthropic's client parses them."""

from itertools import chain
from typing import Any

import pytest
from anthropic.types import (
    Message,
    RawContentBlockDeltaEvent,
    RawContentBlockStartEvent,
    RawMessageDeltaEvent,
    RawMessageStartEvent,
    RawMessageStreamEvent,
)
from pydantic import TypeAdapter

from genai_server.answer_parts import Content, Part, ToolCallArguments, ToolCallEnd, ToolCallStart
from genai_server.apis.messages.routes import MessageBuilder
from genai_server.generation.answers import Ending
from genai_server.http.json_response import JsonObject
from genai_server.http.telemetry.request_record import Usage
from genai_server.messages.generation_request import FinishReason
from tests.answer_parts import PARTS, whole

EVENT: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)
CALLED, CUT = Ending(calls_tools=True), Ending(has_incomplete_call=True)
USAGE = Usage(prompt=10, completion=4, cached=7, reasoning=2)


def _complete(parts: list[Part], ending: Ending = CALLED, usage: Usage = USAGE) -> Message:
    build = MessageBuilder("msg_1", "m", 5, shows_thinking=True)
    return Message.model_validate(build.complete(whole(parts), ending, usage))


def _stream(parts: list[Part], ending: Ending = CALLED) -> list[RawMessageStreamEvent]:
    build = MessageBuilder("msg_1", "m", 5, shows_thinking=True)
    events: list[JsonObject] = [build.first(Usage(10))]
    for part in parts:
        events += build.parts([part])
    return [EVENT.validate_python(event) for event in [*events, *build.last(ending, USAGE)]]


def test_message_with_an_incomplete_call_does_not_stop_for_tools() -> None:
    cut: list[Part] = [ToolCallStart(0, "call_1", "add"), ToolCallArguments(0, '{"a'), ToolCallEnd(0, False)]
    message = _complete([*cut, Content("!")], CUT)
    call = {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {}}
    assert [block.to_dict() for block in message.content] == [call, {"type": "text", "text": "!"}]
    end = _stream(cut, CUT)[-2]
    assert isinstance(end, RawMessageDeltaEvent)
    assert end.delta.stop_reason == message.stop_reason == "max_tokens"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [('{"a": [1, 2], "b": "x', {"a": [1, 2]}), ("", {}), ("[1]", {}), ("{'a'", {}), ('{"a": NaN}', {})],
)
def test_the_input_of_a_cut_call_has_what_is_complete(arguments: str, expected: dict[str, Any]) -> None:
    (block,) = _complete([ToolCallStart(0, "call_1", "add"), ToolCallArguments(0, arguments)], CUT).content
    assert block.to_dict()["input"] == expected


@pytest.mark.parametrize(
    ("ending", "completion", "expected"),
    [
        (Ending(), 4, ("end_turn", None, {})),
        (CALLED, 4, ("tool_use", None, {})),
        (Ending(calls_tools=True, stop_string="###"), 4, ("stop_sequence", "###", {})),
        (Ending(has_incomplete_call=True, stop_string="###"), 4, ("stop_sequence", "###", {})),
        (Ending(FinishReason.LENGTH), 5, ("max_tokens", None, {})),
        (Ending(FinishReason.LENGTH), 4, ("model_context_window_exceeded", None, {})),
        *(
            (Ending(FinishReason(own)), 4, ("max_tokens", None, {"genai_finish_reason": own}))
            for own in ("terminated", "timeout", "cancelled")
        ),
    ],
)
def test_the_stop_reason_is_one_of_anthropics(ending: Ending, completion: int, expected: tuple[Any, ...]) -> None:
    message = _complete(PARTS, ending, Usage(3, completion))
    assert (message.stop_reason, message.stop_sequence, message.model_extra) == expected


def test_cached_tokens_are_not_among_input_tokens() -> None:
    usage = _complete(PARTS).usage.to_dict()
    counted = {"input_tokens": 3, "cache_read_input_tokens": 7, "cache_creation_input_tokens": 0, "output_tokens": 4}
    assert usage == usage | counted | {"output_tokens_details": {"thinking_tokens": 2}}


def test_the_events_of_a_stream_come_in_anthropics_order() -> None:
    """Thoughts are signed before their block ends."""
    events = _stream(PARTS)
    assert [event.index for event in events if isinstance(event, RawContentBlockStartEvent)] == [0, 1, 2, 3]
    thinking = ["thinking_delta", "thinking_delta", "signature_delta"]
    deltas = [event.delta.type for event in events if isinstance(event, RawContentBlockDeltaEvent)]
    assert deltas == [*thinking, *["text_delta"] * 2, *["input_json_delta"] * 3]
    types = [event.type.removeprefix("content_") for event in events]
    blocks = [["block_start", *["block_delta"] * num_deltas, "block_stop"] for num_deltas in (3, 2, 2, 1)]
    assert types == ["message_start", *chain(*blocks), "message_delta", "message_stop"]


def test_an_id_that_the_models_template_needs_stays() -> None:
    (call,) = _complete([ToolCallStart(0, "a1B2c3D4e", "add"), ToolCallArguments(0, "{}")]).content
    assert call.to_dict()["id"] == "a1B2c3D4e"


def test_blocks_come_in_the_order_in_which_they_were_written() -> None:
    parts = [*PARTS, Content("!"), *PARTS[:2]]
    types = [block.type for block in _complete(parts).content]
    assert types == ["thinking", "text", "tool_use", "tool_use", "text", "thinking"]
    starts = [event.content_block.type for event in _stream(parts) if isinstance(event, RawContentBlockStartEvent)]
    assert starts == types


def test_an_empty_answer_is_a_message_without_blocks() -> None:
    assert _complete([]).content == []
    assert [event.type for event in _stream([])] == ["message_start", "message_delta", "message_stop"]


def test_first_event_counts_the_prompt_and_message_delta_all() -> None:
    first, *_, end, _ = _stream(PARTS)
    assert isinstance(first, RawMessageStartEvent)
    assert (first.message.usage.input_tokens, first.message.usage.output_tokens) == (10, 0)
    assert (first.message.content, first.message.stop_reason) == ([], None)
    assert isinstance(end, RawMessageDeltaEvent)
    assert (end.usage.input_tokens, end.usage.cache_read_input_tokens, end.usage.output_tokens) == (3, 7, 4)
    assert end.delta.stop_reason == "tool_use"
