"""Complete benchmarks of a server with known times."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from genai_server.errors import ServerUnusable
from genai_server.plain_tables import plain_report
from genai_server.tools.bench import scenarios
from genai_server.tools.bench.bench_client import Outcome
from genai_server.tools.bench.bench_report import Report, as_parts
from genai_server.tools.bench.bench_session import Session
from genai_server.tools.bench.measurement import Answer
from genai_server.tools.bench.plan import Plan, RequestOptions
from tests.tools.bench.fake_server import FakeServer, fake_server


def bench(
    plan: Plan, *, body: dict[str, Any] | None = None, urls: int = 1, **seconds: float
) -> tuple[Report, FakeServer]:
    """Run a plan against a fake server, which may be named several times."""

    async def run() -> tuple[Report, FakeServer]:
        async with fake_server(**seconds) as fake:
            session = Session(plan, RequestOptions([fake.url] * urls, body=body or {}))
            await session.run(lambda done, total, title: None)
            return session.report(), fake

    return asyncio.run(run())


def ratio(report: Report) -> dict[str, float]:
    return {ratio.title: ratio.value.median for ratio in report.ratios}


def test_sweep_alternates_servers_and_sends_each_prompt_once() -> None:
    plan = Plan(rounds=2, requests=2, concurrency=(1, 2), prompt_tokens=(64, 32), output_tokens=16)
    report, fake = bench(plan, urls=2)
    assert [measurement.target for measurement in report.measurements] == ["A", "B"] * 8
    assert [measurement.round for measurement in report.measurements] == [0] * 8 + [1] * 8
    assert {measurement.completed for measurement in report.measurements} == {2}
    assert {measurement.figures["prompt_tokens"] for measurement in report.measurements} == {64.0, 32.0}
    prompts = [body["messages"][0]["content"] for body in fake.bodies]
    assert len(prompts) == len(set(prompts)) == 2 * (2 + 2 * 4 * 2)


def test_one_stream_without_drafts_is_compared_with_the_library(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A loop without drafts is no upper limit for a server with them."""

    async def run_bare_loop(label: str, model_dir: Path, prompt: int, output: int, runs: int) -> Outcome:
        times = tuple(1.0 + 0.01 * number for number in range(output))
        return Outcome([Answer(0.0, times, times[-1], prompt, output, 0, 0)], [])

    monkeypatch.setattr(scenarios, "run_bare_loop", run_bare_loop)
    plan = Plan(rounds=1, requests=2, concurrency=(1, 4), output_tokens=16, library=tmp_path)
    report, fake = bench(plan, urls=2)
    order = [(each.target, each.case.name, each.case.streams) for each in report.measurements]
    assert order == [
        *((label, scenarios.SWEEP, 1) for label in (scenarios.TUNED, scenarios.SHIPPED)),
        *((label, scenarios.WITHOUT_DRAFTS, 1) for label in "AB"),
        *((label, scenarios.SWEEP, streams) for streams in (1, 4) for label in "AB"),
    ]
    assert ["seed" in body for body in fake.bodies[4:]] == [True] * 4 + [False] * 8
    titles = [ratio.title for ratio in report.ratios if ratio.target == "A"]
    one = "decode tokens/s, 1 stream of 64+16 tokens"
    loops = ("the bare og.Generator loop, same threads", "the bare og.Generator loop as shipped")
    assert titles[:4] == [f"{one}{drafts}: against {loop}" for drafts in (", no drafts", "") for loop in loops]
    assert "sweep without drafts" in plain_report(as_parts(report))


def test_cpu_time_per_token_of_the_server_is_reported() -> None:
    report, _ = bench(Plan(rounds=1, requests=20, concurrency=(20,), output_tokens=100))
    (measurement,) = report.measurements
    taken = measurement.figures["cpu_per_token"]
    assert taken is not None  # client and server share one process here
    assert 0 < taken < 0.1


def test_requests_have_what_the_user_asks_for_and_a_connection_each() -> None:
    _, fake = bench(Plan(rounds=1, requests=2, concurrency=(1,)), body={"ignore_eos": True})
    assert set(fake.bodies[-1]) == {"messages", "max_tokens", "stream", "stream_options", "ignore_eos"}
    assert {"connection: close" in head for head in fake.heads} == {True}


def test_refusing_server_is_reported_before_any_measurement() -> None:
    with pytest.raises(ServerUnusable, match="400: no refuse"):
        bench(Plan(), body={"refuse": True})


def test_short_prompt_is_measured_with_streams_and_a_long_prompt() -> None:
    plan = Plan("fairness", rounds=1, requests=2, disturbing_tokens=1000, streams=2, output_tokens=20_000)
    report, fake = bench(plan, prompt_token=0.001)
    assert {measurement.case.name: measurement.completed for measurement in report.measurements} == {
        scenarios.SHORT_ALONGSIDE: 2,
        scenarios.SHORT_BEHIND: 2,
    }
    assert list(ratio(report)) == ["TTFT p50, short prompt behind a long one: against alongside streams"]
    lengths = [len(body["messages"][0]["content"].split()) for body in fake.bodies[2:]]
    assert sorted(lengths) == sorted(2 * [27, 27, 3, 495, 3])


def test_crowd_with_a_common_prefix_counts_the_prompts_read() -> None:
    report, fake = bench(Plan("crowd", rounds=1, streams=5, prefix_tokens=210, new_tokens=20))
    (measurement,) = report.measurements
    assert measurement.completed == 5
    assert measurement.figures["prompts_read"] == 5.0  # this server does not report cached tokens
    prompts = [body["messages"][0]["content"].split() for body in fake.bodies[2:]]
    assert len({" ".join(prompt[:100]) for prompt in prompts}) == 1
    assert len({" ".join(prompt) for prompt in prompts}) == 5
    assert "prompts read" in plain_report(as_parts(report))
