"""What the engine counts, and when it sends the figures."""

from pathlib import Path
from typing import Any

import pytest

from genai_server.engine.api_connections import Connected
from genai_server.engine.metrics import Tally
from genai_server.messages.admin import SetRuntimeOption
from genai_server.messages.engine_protocol import Cancel, Figures, Histogram
from tests.engine.bench import Bench
from tests.hand_clock import HandClock
from tests.stepped_loop import API, OTHER_API


@pytest.fixture
def bench(tmp_path: Path, clock: HandClock) -> Bench:
    return Bench(tmp_path, max_running=2, clock=clock)


def _sent(bench: Bench, connection: int = API) -> list[Figures]:
    return [message for to, message in bench.sent if to == connection and isinstance(message, Figures)]


def _figures(bench: Bench, clock: HandClock) -> Figures:
    """The figures sent after another second."""
    clock.wait(1.0)
    bench.put(Connected())  # otherwise an idle loop waits
    bench.steps(1)
    return _sent(bench)[-1]


def test_a_value_counts_in_the_first_bucket_that_is_not_below_it() -> None:
    tally = Tally((1, 2, 4))
    for value in (0.5, 1, 1.5, 4, 9):
        tally.add(value)
    assert tally.histogram() == Histogram([1, 2, 4], [2, 1, 1, 1], 16.0)
    tally.add(2)
    assert tally.histogram() == Histogram([1, 2, 4], [2, 2, 1, 1], 18.0)


@pytest.mark.parametrize(
    ("script", "fields"),
    [("count 0", {}), ("say ab", {"max_tokens": 0}), ("say ab", {"stop_token_ids": [ord("a")]})],
    ids=["nothing said", "no token asked for", "stopped at once"],
)
def test_a_prompt_counts_without_a_token_of_its_answer(
    bench: Bench, clock: HandClock, script: str, fields: dict[str, Any]
) -> None:
    assert bench.answer(1, script, **fields) == ""
    figures = _figures(bench, clock)
    assert (figures.prompt_tokens, figures.generation_tokens) == (len(f"{script}\n\x04"), 0)


def test_tokens_count_when_produced_and_prompts_when_read(bench: Bench, clock: HandClock) -> None:
    for key in (1, 2):
        bench.submit(key, "say hello")
    bench.steps(1)
    assert _figures(bench, clock).prompt_tokens == 0
    bench.put(Cancel(2))  # its prompt is not read to its end
    bench.run()
    figures = _figures(bench, clock)
    assert figures.prompt_tokens == len("say hello\n\x04")
    assert figures.generation_tokens == len("hello")
    assert sum(figures.token_gaps.counts) == len("hello") - 1


def test_tokens_are_counted_by_the_names_of_keys(bench: Bench, clock: HandClock) -> None:
    bench.submit(1, "say hello", key_name="alice")
    bench.submit(2, "say hi", key_name="bob")
    bench.submit(3, "say it")
    bench.run()
    figures = _figures(bench, clock)
    assert figures.generation_tokens_by_key == {"alice": 5, "bob": 2, "": 2}
    assert figures.prompt_tokens_by_key == {"alice": 11, "bob": 8, "": 8}
    assert (figures.generation_tokens, figures.prompt_tokens) == (9, 27)


def test_passes_are_counted_by_kind_with_their_rows(bench: Bench, clock: HandClock) -> None:
    bench.answer(1, "say abcd")
    figures = _figures(bench, clock)
    assert sum(figures.prefill_passes.counts) == 2  # of at most 8 tokens
    assert sum(figures.decode_passes.counts) == figures.decode_rows.counts[0] == figures.decode_rows.sum == 4


def test_the_time_between_two_tokens_is_what_the_clock_says(bench: Bench, clock: HandClock) -> None:
    bench.submit(1, "say ab")
    while not bench.text(1):
        bench.steps(1)
    clock.wait(0.3)
    bench.run()
    gaps = _figures(bench, clock).token_gaps
    assert gaps.sum == pytest.approx(0.3)
    assert gaps.counts[gaps.bounds.index(0.3)] + gaps.counts[gaps.bounds.index(0.5)] == 1  # of 50.3 - 50.0


def test_terminated_requests_are_counted(bench: Bench, clock: HandClock) -> None:
    for key in (1, 2):
        bench.submit(key, "count 50")
    bench.steps(3)
    bench.put(SetRuntimeOption(7, "terminate_session", "1"))
    assert _figures(bench, clock).terminated == 2


def test_profiled_sequences_and_sessions_of_profiles_are_counted(bench: Bench, clock: HandClock) -> None:
    bench.put(SetRuntimeOption(7, "enable_profiling", "p"))
    bench.submit(1, "count 50")
    bench.steps(3)
    clock.wait(1.0)
    bench.steps(1)
    assert (_sent(bench)[-1].profiled, _sent(bench)[-1].profile_sessions) == (1, 1)
    bench.run()
    figures = _figures(bench, clock)
    assert (figures.profiled, figures.profile_sessions) == (0, 1)


def test_kv_tokens_are_those_of_running_sequences(bench: Bench, clock: HandClock) -> None:
    bench.submit(1, "count 50")
    bench.steps(3)
    (running,) = bench.scheduler.running
    assert running.num_read > 0
    clock.wait(1.0)
    bench.steps(1)
    assert 0 < _sent(bench)[-1].kv_tokens <= running.num_read
    bench.run()
    assert _figures(bench, clock).kv_tokens == 0


def test_figures_are_sent_once_a_second_if_they_changed(bench: Bench, clock: HandClock) -> None:
    bench.submit(1, "count 50")
    bench.steps(3)
    assert len(_sent(bench)) == 1  # of a new connection
    clock.wait(1.0)
    bench.steps(3)
    assert len(_sent(bench)) == 2
    bench.run()
    _figures(bench, clock)
    _figures(bench, clock)
    assert len(_sent(bench)) == 3


def test_api_process_that_attaches_later_gets_the_figures(bench: Bench, clock: HandClock) -> None:
    bench.answer(1, "say a")
    known = _figures(bench, clock)
    bench.put(Connected(), OTHER_API)
    bench.steps(1)
    clock.wait(1.0)
    bench.put(Connected(), OTHER_API)
    bench.steps(1)
    assert _sent(bench, OTHER_API) == [known]


def test_preemptions_of_low_priority_count_and_their_gaps_do_not(bench: Bench, clock: HandClock) -> None:
    for key in (1, 2):
        bench.submit(key, "count 3", low_priority=True)
    bench.steps(3)
    before = _figures(bench, clock)
    assert (before.low_priority_preemptions, sum(before.token_gaps.counts)) == (0, 0)
    bench.submit(3, "say abc")
    bench.run()
    after = _figures(bench, clock)
    assert (after.low_priority_preemptions, sum(after.token_gaps.counts)) == (1, 2)
    assert [bench.text(key) for key in (1, 2, 3)] == ["1, 2, 3", "1, 2, 3", "abc"]
    assert after.prompt_tokens == sum(len(f"{script}\n\x04") for script in ("count 3", "count 3", "say abc"))
