"""Ollama's answers built from parts, complete and line by line."""

from genai_server.answer_parts import Content, Reasoning, ScoredToken
from genai_server.apis.ollama.response import AnswerBuilder, ending
from genai_server.http.telemetry.usage import Usage
from genai_server.messages.generation_request import FinishReason
from genai_server.timing import Breakdown
from tests.answer_parts import PARTS, whole

BREAKDOWN = Breakdown(receive=0.01, load=0.25, prepare=0.02, queue=0.03, prefill=0.5, decode=1.0, deliver=0.04)
END = ending(FinishReason.STOP, Usage(5, 3), total=2.0, breakdown=BREAKDOWN)


def test_calls_are_numbered_over_all_lines() -> None:
    build = AnswerBuilder("m", is_chat=True)
    first = build.part([Content("Sum: "), *PARTS[4:8]])
    function = {"index": 0, "name": "add", "arguments": {"a": 1}}
    assert first["message"] == {
        "role": "assistant",
        "content": "Sum: ",
        "tool_calls": [{"id": "call_1", "function": function}],
    }
    second = build.part(PARTS[8:])
    assert second["message"]["tool_calls"][0]["function"] == {"index": 1, "name": "sub", "arguments": {}}
    last = build.last(END)
    assert (second["done"], last["done"], last["message"]) == (False, True, {"role": "assistant", "content": ""})


def test_an_answer_to_a_prompt_is_a_text_with_its_thoughts() -> None:
    build = AnswerBuilder("m", is_chat=False)
    line = build.part([Reasoning("so"), Content("yes")])
    assert {name: line[name] for name in ("model", "response", "thinking", "done")} == {
        "model": "m",
        "response": "yes",
        "thinking": "so",
        "done": False,
    }


def test_complete_answer_has_all_parts() -> None:
    answer = whole(PARTS)
    answer.tokens.append(ScoredToken(b"yes", -0.5))
    found = AnswerBuilder("m", is_chat=True).complete(answer, END)
    assert found["message"]["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert (found["message"]["content"], found["message"]["thinking"]) == ("Hello", "so be it")
    assert found["logprobs"] == [{"token": "yes", "logprob": -0.5, "bytes": (121, 101, 115)}]


def test_durations_are_nanoseconds() -> None:
    assert END == {
        "done": True,
        "done_reason": "stop",
        "total_duration": 2_000_000_000,
        "load_duration": 250_000_000,
        "prompt_eval_count": 5,
        "prompt_eval_duration": 500_000_000,
        "eval_count": 3,
        "eval_duration": 1_000_000_000,
    }


def test_interruption_is_a_length_with_its_own_finish_reason() -> None:
    found = ending(FinishReason.CANCELLED, Usage(1), 1, None)
    assert (found["done_reason"], found["genai_finish_reason"]) == ("length", "cancelled")
