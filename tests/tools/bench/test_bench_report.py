"""The reports of measurements."""

import json
from pathlib import Path

import pytest

from genai_server.plain_tables import plain_report
from genai_server.tools.bench.bench_report import Report, TargetInfo, as_json, as_parts
from genai_server.tools.bench.measurement import Case, Measurement, Spread
from genai_server.tools.bench.plan import Plan
from genai_server.tools.bench.scenarios import SHIPPED, TUNED, WITHOUT_DRAFTS

ONE, FOUR = (Case("sweep", streams, 64, 32) for streams in (1, 4))


def measurement(target: str, case: Case, number: int, decode: float | None, **figures: float) -> Measurement:
    return Measurement(target, case, number, {"decode_tokens_per_second": decode, **figures}, completed=4)


def report(*measurements: Measurement, interrupted: bool = False) -> Report:
    targets = [TargetInfo("A", "http://a", "m", health=[0.001, 0.002]), TargetInfo("B", "http://b", None)]
    return Report(Plan(), targets, list(measurements), interrupted)


def text_of(found: Report) -> str:
    return plain_report(as_parts(found))


SWEEP = (
    measurement(TUNED, ONE, 0, 100.0),
    measurement(SHIPPED, ONE, 0, 50.0),
    measurement("A", ONE, 0, 98.0, ttft_p50=0.25),
    measurement("A", FOUR, 0, 245.0),
    measurement(TUNED, ONE, 1, 80.0),
    measurement(SHIPPED, ONE, 1, 60.0),
    measurement("A", ONE, 1, 77.6, ttft_p50=0.75),
    measurement("A", FOUR, 1, None),
)


def test_ratios_are_formed_within_a_round() -> None:
    found = {ratio.title.removeprefix("decode tokens/s, "): ratio.value for ratio in report(*SWEEP).ratios}
    threads = found["1 stream of 64+32 tokens: against the bare og.Generator loop, same threads"]
    shipped = found["1 stream of 64+32 tokens: against the bare og.Generator loop as shipped"]
    assert [threads.median, shipped.min, shipped.max] == pytest.approx([(0.98 + 0.97) / 2, 77.6 / 60, 1.96])
    assert threads.rounds == 2
    assert found["4 streams of 64+32 tokens: against one stream"] == Spread(2.5, 2.5, 2.5, rounds=1)


@pytest.mark.parametrize(("drafted", "formed"), [(0.0, True), (24.0, False)])
def test_the_bare_loop_is_compared_with_an_undrafted_stream(drafted: float, formed: bool) -> None:
    alone = Case(WITHOUT_DRAFTS, 1, 64, 32)
    rows = (*SWEEP, measurement("A", alone, 0, 45.0, drafted_tokens=drafted))
    found = {ratio.title: ratio.value.median for ratio in report(*rows).ratios}
    title = "decode tokens/s, 1 stream of 64+32 tokens, no drafts: against the bare og.Generator loop"
    assert (f"{title}, same threads" in found) == (f"{title} as shipped" in found) == formed
    if formed:
        assert (found[f"{title}, same threads"], found[f"{title} as shipped"]) == (0.45, 0.9)
        assert found["decode tokens/s, 4 streams of 64+32 tokens: against one stream, no drafts"] == 245.0 / 45.0


def test_further_servers_are_compared_with_the_first() -> None:
    rows = [measurement(target, ONE, 0, None, tokens_per_second=rate) for target, rate in (("A", 50.0), ("B", 75.0))]
    (ratio,) = report(*rows).ratios
    assert (ratio.target, ratio.value.median) == ("B", 1.5)


def test_drafted_tokens_and_an_interruption_are_named() -> None:
    assert "accepted drafts" in text_of(report(measurement("A", ONE, 0, 45.0, drafted_tokens=3.0)))
    assert text_of(report(interrupted=True)).endswith("Interrupted: these are the measurements so far.")


def test_table_has_median_minimum_and_maximum_in_ms() -> None:
    text = text_of(report(*SWEEP))
    assert "500 (250–750)" in text
    assert "A: health probe during all of it: p50 1.50 ms, p99 1.99 ms, max 2.00 ms (2 probes, 0 failed)" in text
    assert "B: health" not in text


def test_failures_are_counted_and_the_first_is_shown() -> None:
    failed = Measurement("A", ONE, 0, {}, 1, ("queue is full", "other"))
    found = report(failed)
    assert "2 failed: A, sweep, 1 at once: queue is full" in text_of(found)
    assert "2/3" in text_of(found)
    assert not found.all_failed
    assert report(Measurement("A", ONE, 0, {}, 0, ("queue is full",))).all_failed


def test_the_json_has_each_round_and_the_summaries() -> None:
    found = json.loads(json.dumps(as_json(report(*SWEEP))))
    assert len(found["measurements"]) == 8
    assert found["summaries"][2]["figures"]["ttft_p50"] == {"median": 0.5, "min": 0.25, "max": 0.75, "rounds": 2}
    assert found["targets"][0]["health"]["health_p50"] == 0.0015
    assert found["targets"][1]["health"] is None


@pytest.mark.parametrize(
    ("scenario", "suffix", "magic"),
    [("sweep", ".png", b"\x89PNG"), ("sweep", ".svg", b"<?xml"), ("prefix", ".svg", b"<?xml")],
)
def test_the_plot_is_written_after_its_name(tmp_path: Path, scenario: str, suffix: str, magic: bytes) -> None:
    # It imports matplotlib, in each process that collects this module.
    from genai_server.tools.bench.plot import save_plot

    found = report(*SWEEP)
    if scenario == "prefix":  # which is drawn as bars
        found = report(measurement("A", Case("cold", 1, 1016, 8), 0, None, ttft_p50=1.0))
        found.plan = Plan("prefix")
    path = tmp_path / f"plot{suffix}"
    save_plot(found, path)
    assert path.read_bytes().startswith(magic)
