"""The engine loop, step by step, without threads or processes."""

from collections import abc
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from genai_server.engine.api_connections import Connected, Disconnected
from genai_server.engine.runners.base import Interrupted
from genai_server.engine.runners.scripted import ScriptedPooledRunner
from genai_server.engine.scheduling.scheduler_output import ScheduledChunk, Step
from genai_server.engine.scores import Scores
from genai_server.errors import RunnerFailed
from genai_server.messages.admin import (
    CacheReset,
    CallFailed,
    GetRuntimeOptions,
    ResetPrefixCache,
    RuntimeOptionsReply,
    SetRuntimeOption,
)
from genai_server.messages.engine_protocol import (
    Accepted,
    Cancel,
    Capacity,
    Failed,
    Finished,
    Load,
    Progress,
    Tokens,
    Vectors,
)
from genai_server.messages.frames import ErrorInfo
from genai_server.messages.generation_request import FinishReason, PooledText
from genai_server.model_files.pooling_model import PoolingModel, Task
from tests.engine.bench import Bench
from tests.stepped_loop import API, OTHER_API


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_request_is_accepted_then_answered_then_finished_once(bench: Bench) -> None:
    assert bench.answer(1, "say hello") == "hello"
    assert bench.kinds(1) == [Accepted, Tokens, Finished]
    assert bench.reason(1) == FinishReason.STOP


@pytest.mark.parametrize(
    ("script", "fields", "tokens", "reason"),
    [
        ("count 50", {"max_tokens": 7}, [*b"1, 2, 3"], FinishReason.LENGTH),
        ("count 50", {"max_length": 16}, [*b"1, 2, "], FinishReason.LENGTH),  # 10 of them are the prompt's
        ("say a", {"ignore_eos": True, "max_tokens": 3}, [97, 256, 256], FinishReason.LENGTH),
    ],
)
def test_an_answer_ends_at_its_limit(
    bench: Bench, script: str, fields: dict[str, Any], tokens: list[int], reason: FinishReason
) -> None:
    bench.submit(1, script, **fields)
    bench.run()
    assert (bench.tokens(1), bench.reason(1)) == (tokens, reason)


def _load(**counts: Any) -> Load:
    """A load whose requests have no keys."""
    return Load(**{"present": {"": counts["running"] + counts.get("waiting", 0)}} | counts)


def test_requests_beyond_max_running_queue_in_arrival_order(tmp_path: Path) -> None:
    bench = Bench(tmp_path, max_running=1, max_waiting=2)
    for key in (1, 2, 3):
        bench.submit(key, "say ab")
    bench.steps(1)
    load = _load(running=1, waiting=2, waiting_tokens={"": 16}, retry_after=1, capacity=Capacity(1, 2))
    assert (API, load) in bench.sent
    bench.run()
    assert [message.key for message in bench.messages(Finished)] == [1, 2, 3]


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_cancelled_request_ends_at_once_without_a_message(bench: Bench, steps: int) -> None:
    bench.submit(1, "say hello" + " " * 12)
    bench.steps(steps)
    bench.put(Cancel(1))
    bench.steps(1)
    assert bench.scheduler.is_idle
    assert bench.ends(1) == []


@pytest.mark.parametrize(("message", "connection"), [(Cancel(1), API), (Disconnected(), OTHER_API)])
def test_what_concerns_nobody_has_no_effect(bench: Bench, message: Cancel | Disconnected, connection: int) -> None:
    bench.answer(1, "say a")
    bench.put(message, connection)
    assert bench.answer(2, "say b") == "b"


def test_the_requests_of_an_api_process_that_died_are_dropped(bench: Bench) -> None:
    bench.put(Connected(), OTHER_API)
    bench.submit(1, "count 20")
    bench.submit(1, "count 20", connection=OTHER_API)
    bench.steps(4)
    assert (API, _load(running=2, others=1, capacity=bench.scheduler.capacity)) in bench.sent
    bench.put(Disconnected(), OTHER_API)
    bench.steps(1)
    assert len(bench.scheduler.running) == 1
    bench.sent.clear()
    bench.run()
    assert {connection for connection, _ in bench.sent} == {API}


def test_runner_that_fails_every_pass_ends_the_loop(bench: Bench) -> None:
    bench.submit(1, "count 9; break at 2")
    for key in (2, 3, 4):
        bench.submit(key, "count 9")
    with pytest.raises(RunnerFailed):
        bench.run()
    assert [len(bench.ends(key)) for key in (1, 2, 3, 4)] == [1, 1, 1, 0]
    assert {bench.failure(key).code for key in (1, 2, 3)} == {"runner_failed"}


@pytest.mark.parametrize("others", [[], ["say a"]], ids=["alone", "in turn with others"])
def test_requests_that_fail_in_a_row_do_not_end_the_loop(bench: Bench, others: list[str]) -> None:
    for key, script in enumerate(["fail at 0", *others] * 8):
        bench.answer(key, script)
    assert bench.answer(99, "say b") == "b"


def test_failing_request_gets_its_error_and_others_continue(bench: Bench) -> None:
    def fail_the_third(chunks: abc.Sequence[ScheduledChunk]) -> None:
        if chunks[0].sequence.request.request_id == "r3":
            raise ZeroDivisionError

    bench.before_each_pass(fail_the_third)
    for key, script in enumerate(("fail at 1; say abc", "say abc", "say abc"), 1):
        bench.submit(key, script)
    bench.run()
    assert bench.ends(1) == [Failed(1, ErrorInfo("runner_failed", "scripted failure"))]
    assert bench.failure(3).code == "runner_failed"
    assert [bench.text(key) for key in (1, 2, 3)] == ["a", "abc", ""]


@pytest.mark.parametrize("where", ["_scheduler.observe", "_options.observe", "_meter.passed"])
def test_error_after_tokens_were_sent_fails_no_request(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    place, _, name = where.rpartition(".")
    broken = Mock(side_effect=ZeroDivisionError)
    monkeypatch.setattr(attrgetter(place)(bench.loop), name, broken)
    assert bench.answer(1, "say ab") == "ab"
    assert bench.kinds(1) == [Accepted, Tokens, Finished]
    assert broken.call_count == 3


def test_interrupted_pass_is_repeated(bench: Bench) -> None:
    passes: list[list[int]] = []

    def interrupt(chunks: abc.Sequence[ScheduledChunk]) -> None:
        passes.append(list(chunks[0].tokens))
        if len(passes) in (2, 3):
            raise Interrupted

    bench.before_each_pass(interrupt)
    assert bench.answer(1, "say hello") == "hello"
    assert passes[1] == passes[2] == passes[3] != passes[0]
    assert bench.reason(1) == FinishReason.STOP


def test_only_completed_passes_are_timed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[Step] = []
    bench.before_each_pass(Mock(side_effect=[Interrupted, ZeroDivisionError, None]))
    monkeypatch.setattr(bench.scheduler, "observe", lambda step, seconds: timed.append(step))
    bench.submit(1, "say hello")
    bench.steps(2)
    assert isinstance(bench.ends(1)[0], Failed)
    assert timed == []
    bench.submit(2, "say hello")
    bench.steps(1)
    assert [step.num_tokens for step in timed] == [8]


def test_cancellation_interrupts_a_runner_without_a_batch(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.runner, "interrupt", interrupted := Mock())
    bench.before_each_pass(lambda _: bench.loop.interrupts.ask(API, Cancel(1)))
    bench.submit(1, "say hi")
    bench.steps(1)
    interrupted.assert_called_once()


def test_idle_engine_frees_memory_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genai_server.engine.loop.BEAT_SECONDS", 0.0)  # an idle step waits no longer
    monkeypatch.setattr("genai_server.engine.loop.release_free_memory", given_back := Mock())
    for key in (1, 2):
        bench.answer(key, "say x")
        assert given_back.call_count == key - 1
        bench.steps(2)
        assert given_back.call_count == key


def test_cache_reset_without_a_batch_frees_nothing(bench: Bench) -> None:
    bench.answer(1, "say a")
    assert bench.ask(ResetPrefixCache(5), CacheReset) == CacheReset(5, 0)


def test_terminate_ends_all_and_refuses_until_recovery(tmp_path: Path) -> None:
    bench = Bench(tmp_path, max_running=1)
    for key in (1, 2):
        bench.submit(key, "count 50")
    bench.steps(5)
    bench.put(SetRuntimeOption(7, "terminate_session", "1"))
    bench.submit(3, "say c")
    bench.put(SetRuntimeOption(8, "terminate_session", "0"))
    bench.submit(4, "say d")
    bench.steps(1)
    assert bench.reason(1) == bench.reason(2) == FinishReason.TERMINATED
    assert "1, 2".startswith(bench.text(1)) and bench.text(1)
    assert bench.refusal(3).code == "session_terminated"
    bench.run(4)
    assert bench.text(4) == "d"


def test_terminating_by_request_id_names_what_it_has_ended(bench: Bench) -> None:
    bench.submit(1, "count 50")
    bench.submit(2, "count 50")
    bench.steps(3)
    bench.put(SetRuntimeOption(7, "terminate_session", "1", "r2"))
    bench.put(SetRuntimeOption(8, "terminate_session", "1", "r9"))
    bench.steps(1)
    replies = {message.call: message for message in bench.messages(RuntimeOptionsReply)}
    assert [[state.request_id for state in replies[call].requests] for call in (7, 8)] == [["r2"], []]
    assert replies[7].options.terminate_session == "0"
    assert bench.reason(2) == FinishReason.TERMINATED
    assert bench.ends(1) == []


def test_terminating_ends_a_background_request_that_gives_way(tmp_path: Path) -> None:
    bench = Bench(tmp_path, max_running=1)
    bench.submit(1, "count 50", low_priority=True)
    bench.steps(4)
    bench.put(SetRuntimeOption(7, "terminate_session", "1", "r1"))
    bench.submit(2, "say b")  # lies in the inbox when the pass that terminates would begin
    bench.run(2)
    assert (bench.text(2), bench.reason(1)) == ("b", FinishReason.TERMINATED)


def test_profiling_writes_one_file_per_pass_from_its_token_on(bench: Bench, tmp_path: Path) -> None:
    bench.submit(1, "say abcdefghij")
    bench.steps(5)  # two chunks of prompt, the second of which yields token 0, and tokens 1 to 3
    bench.put(SetRuntimeOption(7, "enable_profiling", "p"))
    bench.steps(3)
    bench.put(SetRuntimeOption(8, "enable_profiling", "0"))
    bench.run()
    replies = {message.call: message.options for message in bench.messages(RuntimeOptionsReply)}
    assert len(bench.text(1)) == 10
    assert [(request.request_id, request.from_token) for request in replies[7].requests] == [("r1", 4)]
    assert replies[8].requests == []
    assert len(list(tmp_path.glob("scripted/p_*.json"))) == 3


def test_a_switch_to_an_unusable_profile_folder_is_refused_and_fails_no_request(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    bench = Bench(blocked)
    bench.submit(1, "say ab")
    bench.put(SetRuntimeOption(7, "enable_profiling", "1"))
    bench.run()
    (reply,) = bench.messages(CallFailed)
    assert str(blocked) in reply.error.message
    assert bench.ask(GetRuntimeOptions(8), RuntimeOptionsReply).options.enable_profiling == "0"
    assert bench.text(1) == "ab"


def test_progress_is_sent_after_each_chunk_on_demand(bench: Bench) -> None:
    bench.answer(1, "say abcdefghij", progress=True)
    assert bench.kinds(1) == [Accepted, Progress, Progress, Tokens, Finished]
    assert [message.num_read for message in bench.messages(Progress, 1)] == [8, len("say abcdefghij") + 2]


def test_failed_copy_of_a_cached_prefix_fails_no_request(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.runner, "match_again", tried := Mock(side_effect=RunnerFailed("no memory")))
    bench.runner.abilities = replace(bench.runner.abilities, caches_prefixes=True)
    assert bench.answer(1, "say a") == "a"
    tried.assert_called_once()


class Overflowing(ScriptedPooledRunner):
    """A runner whose vectors of texts that start with token 7 contain a NaN."""

    def forward(self, rows: abc.Sequence[ScheduledChunk]) -> list[Scores]:
        found = super().forward(rows)
        for row, scores in zip(rows, found, strict=True):
            if row.tokens[0] == 7 and scores.vectors is not None:
                scores.vectors[0, 0] = np.nan
        return found


def test_a_vector_that_is_not_finite_fails_its_own_request_only(tmp_path: Path) -> None:
    bench = Bench(tmp_path, pooled=Overflowing(PoolingModel(Task.EMBED, "model.onnx", 9, 257, dimensions=4)))
    for key, tokens in ((1, [7, 1]), (2, [8, 1])):
        bench.put_request(key, tokens, max_tokens=0, max_length=2, texts=[PooledText(2)])
    bench.run()
    assert bench.failure(1).code == "runner_failed"
    assert bench.kinds(2) == [Accepted, Vectors, Finished]


def test_preempted_texts_are_each_pooled_once(tmp_path: Path) -> None:
    texts = [[number, *range(number)] for number in range(200)]
    asked: dict[str, Any] = {
        "prompt": [token for text in texts for token in text],
        "texts": [PooledText(len(text)) for text in texts],
        "max_tokens": 0,
        "max_length": sum(map(len, texts)),
    }
    pooling = PoolingModel(Task.EMBED, "model.onnx", 9, 257, dimensions=4)
    bench = Bench(tmp_path, max_running=1, pooled=ScriptedPooledRunner(pooling))
    bench.put_request(1, **asked)
    bench.run(1)
    bench.put_request(2, low_priority=True, **asked)
    bench.steps(2)
    assert bench.messages(Vectors, 2) and not bench.ends(2)
    bench.put_request(3, [5, 6], max_tokens=0, max_length=2, texts=[PooledText(2)])
    bench.run(2, 3)
    alone, preempted = (b"".join(message.data for message in bench.messages(Vectors, key)) for key in (1, 2))
    assert preempted == alone
