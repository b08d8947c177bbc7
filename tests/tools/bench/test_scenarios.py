"""The scenarios on a server with known times, in virtual time."""

from typing import Any

import pytest

from genai_server.tools.bench import scenarios
from genai_server.tools.bench.bench_client import Target, calibrate
from genai_server.tools.bench.bench_report import ratios
from genai_server.tools.bench.measurement import Measurement
from genai_server.tools.bench.plan import Plan
from tests.tools.bench.fake_server import FakeServer, InProcess
from tests.tools.bench.virtual_time import run_in_virtual_time


def measured(plan: Plan, **seconds: Any) -> list[Measurement]:
    async def measure() -> list[Measurement]:
        server = InProcess(FakeServer(**seconds))
        target = Target(server, await calibrate(server, plan.seed), None)
        found = await scenarios.MEASURES[plan.scenario](target, plan, 0)
        await server.close()
        return found

    return run_in_virtual_time(measure())


def ratio(measurements: list[Measurement]) -> dict[str, float]:
    return {ratio.title: ratio.value.median for ratio in ratios(measurements)}


def test_a_cached_prefix_shows_in_the_time_to_the_first_token() -> None:
    found = measured(Plan("prefix", prefix_tokens=200), prompt_token=0.001)
    assert {each.case.name: each.figures["ttft_p50"] for each in found} == {
        scenarios.COLD: pytest.approx(0.216),
        scenarios.CACHED: 0.0,
    }
    assert ratio(found) == {"TTFT p50, cached prefix: against cold": 0.0}


def test_a_disturbance_shows_in_the_streams() -> None:
    plan = Plan("disturbance", disturbing_tokens=300, output_tokens=20_000)
    found = measured(plan, token=0.001, disturbed_token=0.1, prompt_token=0.001)
    assert ratio(found) == {
        "ITL p95, streams during a prompt: against undisturbed": pytest.approx(100),
        "TTFT p50, prompt alongside streams: against alone": pytest.approx(1),
    }
    assert {each.case.name: each.completed for each in found} == {
        scenarios.UNDISTURBED: 4,
        scenarios.DISTURBED: 4,
        scenarios.ALONE: 1,
        scenarios.ALONGSIDE: 1,
    }
    assert [error for each in found for error in each.errors] == []


def test_streams_that_end_before_the_disturbance_are_reported() -> None:
    plan = Plan("disturbance", disturbing_tokens=300, output_tokens=8)
    (disturbed,) = (each for each in measured(plan, prompt_token=0.001) if each.case.name == scenarios.DISTURBED)
    assert disturbed.errors == ("a stream ended before the prompt's first token: raise --output-tokens",) * plan.streams


def test_decisions_are_compared_to_chats_with_the_same_questions() -> None:
    plan = Plan("decisions", prefix_tokens=200, questions=10, streams=4)
    found = measured(plan, prompt_token=0.01, token=0.05)
    assert {each.case.name: each.completed for each in found} == {
        scenarios.DECISIONS: 10,
        scenarios.TEXT_FIRST: 4,
        scenarios.QUESTION_FIRST: 4,
    }
    text_first, question_first = ratio(found).items()
    assert text_first[0] == "time of a question, chats that begin with the text: against decisions"
    assert question_first[0] == "time of a question, chats that begin with it: against decisions"
    assert 1 < text_first[1] < question_first[1]


def test_a_server_without_decisions_is_reported() -> None:
    class Without(InProcess):
        async def complete(self, data: bytes, path: str = "") -> tuple[int, str, bytes]:
            return 404, "Not Found", b""

    async def measure() -> list[Measurement]:
        server = Without(FakeServer())
        plan = Plan("decisions", questions=3, streams=1)
        found = await scenarios.measure_decisions(Target(server, await calibrate(server), None), plan, 0)
        await server.close()
        return found

    decided = run_in_virtual_time(measure())[0]
    assert (decided.completed, len(decided.errors)) == (0, 3)
    assert "404" in decided.errors[0]
