"""Messages and the events of their streams as Anthropic's client parses them."""

import pytest
from anthropic.types import (
    Message,
    RawContentBlockDeltaEvent,
    RawContentBlockStartEvent,
    RawMessageDeltaEvent,
    RawMessageStartEvent,
    RawMessageStreamEvent,
    ToolUseBlock,
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


def _build(*, shows_thinking: bool = True) -> MessageBuilder:
    return MessageBuilder("msg_1", "m", 5, shows_thinking=shows_thinking)


def _complete(
    parts: list[Part],
    ending: Ending = CALLED,
    usage: Usage = USAGE,
    *,
    shows_thinking: bool = True,
) -> Message:
    build = _build(shows_thinking=shows_thinking)
    return Message.model_validate(build.complete(whole(parts), ending, usage))


def _stream(parts: list[Part], ending: Ending = CALLED, *, shows_thinking: bool = True) -> list[RawMessageStreamEvent]:
    build = _build(shows_thinking=shows_thinking)
    events: list[JsonObject] = [build.first(Usage(10))]
    for part in parts:
        events += build.parts([part])
    return [EVENT.validate_python(event) for event in [*events, *build.last(ending, USAGE)]]


def test_the_input_of_a_cut_call_has_what_is_complete() -> None:
    cut = _complete([*PARTS[:5], ToolCallArguments(0, '{"a": [1, 2], "b": "x')], CUT)
    assert isinstance(cut.content[-1], ToolUseBlock)
    assert cut.content[-1].input == {"a": [1, 2]}


def test_message_with_an_incomplete_call_does_not_stop_for_tools() -> None:
    parts: list[Part] = [
        ToolCallStart(0, "call_1", "add"),
        ToolCallArguments(0, '{"a'),
        ToolCallEnd(0, is_complete=False),
    ]
    message = _complete([*parts, Content("!")], CUT)
    call = {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {}}
    assert [block.to_dict() for block in message.content] == [call, {"type": "text", "text": "!"}]
    assert message.stop_reason == "max_tokens"
    end = _stream(parts, CUT)[-2]
    assert isinstance(end, RawMessageDeltaEvent)
    assert end.delta.stop_reason == "max_tokens"


@pytest.mark.parametrize("arguments", ["", "[1]", "{'a'", '{"a": NaN}'])
def test_arguments_that_are_not_an_object_give_no_input(arguments: str) -> None:
    (block,) = _complete([ToolCallStart(0, "call_1", "add"), ToolCallArguments(0, arguments)]).content
    assert isinstance(block, ToolUseBlock)
    assert block.input == {}


@pytest.mark.parametrize(
    ("ending", "completion", "expected"),
    [
        (Ending(), 4, ("end_turn", None)),
        (CALLED, 4, ("tool_use", None)),
        (Ending(calls_tools=True, stop_string="###"), 4, ("stop_sequence", "###")),
        (Ending(has_incomplete_call=True, stop_string="###"), 4, ("stop_sequence", "###")),
        (Ending(FinishReason.LENGTH), 5, ("max_tokens", None)),
        (Ending(FinishReason.LENGTH), 4, ("model_context_window_exceeded", None)),
        (Ending(FinishReason.TERMINATED), 4, ("max_tokens", None)),
        (CUT, 4, ("max_tokens", None)),
    ],
)
def test_the_stop_reason_is_one_of_anthropics(
    ending: Ending, completion: int, expected: tuple[str, str | None]
) -> None:
    message = _complete(PARTS, ending, Usage(3, completion))
    assert (message.stop_reason, message.stop_sequence) == expected


@pytest.mark.parametrize("reason", ["terminated", "timeout", "cancelled"])
def test_own_finish_reason_accompanies_anthropics(reason: str) -> None:
    message = _complete(PARTS, Ending(FinishReason(reason)))
    assert (message.stop_reason, message.model_extra) == ("max_tokens", {"genai_finish_reason": reason})


def test_cached_tokens_are_not_among_input_tokens() -> None:
    usage = _complete(PARTS).usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.cache_creation_input_tokens) == (3, 7, 0)
    assert usage.output_tokens == 4
    assert usage.output_tokens_details is not None
    assert usage.output_tokens_details.thinking_tokens == 2


def test_the_events_of_a_stream_come_in_anthropics_order() -> None:
    events = _stream(PARTS)
    assert [event.index for event in events if isinstance(event, RawContentBlockStartEvent)] == [0, 1, 2, 3]
    types = [event.type.removeprefix("content_") for event in events]
    thinking = ["block_start", "block_delta", "block_delta", "block_delta", "block_stop"]
    text = ["block_start", "block_delta", "block_delta", "block_stop"]
    calls = ["block_start", "block_delta", "block_delta", "block_stop", "block_start", "block_delta", "block_stop"]
    assert types == ["message_start", *thinking, *text, *calls, "message_delta", "message_stop"]


def test_an_id_that_the_models_template_needs_stays() -> None:
    message = _complete([ToolCallStart(0, "a1B2c3D4e", "add"), ToolCallArguments(0, "{}")])
    assert [block.to_dict()["id"] for block in message.content] == ["a1B2c3D4e"]


def test_blocks_come_in_the_order_in_which_they_were_written() -> None:
    parts = [*PARTS, Content("!"), *PARTS[:2]]
    types = [block.type for block in _complete(parts).content]
    assert types == ["thinking", "text", "tool_use", "tool_use", "text", "thinking"]
    starts = [event.content_block.type for event in _stream(parts) if isinstance(event, RawContentBlockStartEvent)]
    assert starts == types


def test_thoughts_are_signed_before_their_block_ends() -> None:
    deltas = [event.delta for event in _stream(PARTS[:2]) if isinstance(event, RawContentBlockDeltaEvent)]
    assert [delta.type for delta in deltas] == ["thinking_delta", "thinking_delta", "signature_delta"]


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
