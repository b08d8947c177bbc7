"""Ollama's answers built from parts, complete and line by line."""

from genai_server.apis.ollama.translate import ending
from genai_server.http.telemetry.request_record import Usage
from genai_server.messages.generation_request import FinishReason
from genai_server.timing import Breakdown

BREAKDOWN = Breakdown(receive=0.01, load=0.25, prepare=0.02, queue=0.03, prefill=0.5, decode=1.0, deliver=0.04)
END = ending(FinishReason.STOP, Usage(5, 3), total=2.0, breakdown=BREAKDOWN)


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
