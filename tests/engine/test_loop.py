"""The engine loop, step by step, without threads or processes."""

import time
from collections.abc import Callable
from collections.abc import Sequence as Several
from dataclasses import replace
from itertools import count
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from genai_server.engine.ipc.mailbox import Connected, Disconnected
from genai_server.engine.loop import EngineLoop
from genai_server.engine.profiling.folder import DEFAULT_PREFIX, ProfileFolder
from genai_server.engine.profiling.runtime_options import RuntimeOptionState
from genai_server.engine.runners.base import Interrupted
from genai_server.engine.runners.runner_pair import RunnerPair
from genai_server.engine.runners.scores import Scores
from genai_server.engine.runners.scripted import ScriptedPooledRunner, ScriptedRunner
from genai_server.engine.sampling.grammar import bytes_guidance
from genai_server.engine.scheduling.pooling_scheduler import PoolingScheduler
from genai_server.engine.scheduling.scheduler import Scheduler
from genai_server.engine.scheduling.step import Read, Step
from genai_server.errors import RunnerFailed
from genai_server.messages.admin import CacheReset, GetRuntimeOptions, Reply, ResetPrefixCache, SetRuntimeOption
from genai_server.messages.error import ErrorInfo
from genai_server.messages.generation_request import FinishReason, GenerationRequest, PooledText
from genai_server.messages.protocol import (
    Accepted,
    Cancel,
    Capacity,
    Failed,
    Finished,
    Load,
    Progress,
    Refused,
    Submit,
    ToApi,
    Tokens,
    Vectors,
)
from genai_server.pooling_model import PoolingModel, Task

API = 1
OTHER_API = 2


class Bench:
    """A loop with a scripted runner, and the messages that it sent."""

    def __init__(
        self,
        folder: Path,
        *,
        state_file: Path | None = None,
        clock: Callable[[], float] | None = None,
        pooled: ScriptedPooledRunner | None = None,
        processor_time: Callable[[], float] = time.thread_time,
        **limits: Any,
    ) -> None:
        self.sent: list[tuple[int, ToApi]] = []
        self.runner = ScriptedRunner()
        self.scheduler = (Scheduler if pooled is None else PoolingScheduler)(
            pooled or self.runner, **{"max_running": 4, "max_waiting": 4, "prefill_chunk": 8} | limits
        )
        self.profiles = ProfileFolder(folder, "scripted", max_files=100, max_bytes=10**6)
        ticks = count()
        runners = RunnerPair(pooled or self.runner)
        self.loop = EngineLoop(
            runners,
            self.scheduler,
            RuntimeOptionState(runners, self.profiles, state_file=state_file),
            bytes_guidance(self.runner.model, processor_time),
            self._receive,
            clock=clock or (lambda: float(next(ticks))),
        )
        self.inbox = self.loop.inbox
        self.inbox.put((API, Connected()))

    def _receive(self, connection: int, messages: list[ToApi]) -> None:
        self.sent += ((connection, message) for message in messages)

    def submit(self, key: int, script: str, connection: int = API, *, more: bool = False, **fields: Any) -> None:
        prompt = list(f"{script}\n\x04".encode())
        values: dict[str, Any] = {"request_id": f"r{key}", "max_tokens": 500, "max_length": 1000} | fields
        self.inbox.put((connection, Submit(key, GenerationRequest(prompt=prompt, **values), more)))

    def steps(self, number: int) -> None:
        for _ in range(number):
            self.loop.run_one_step()

    def run(self) -> None:
        """Step until nothing is left to do."""
        self.steps(1)
        while not self.scheduler.is_idle:
            self.steps(1)

    def of(self, key: int) -> list[ToApi]:
        """The messages about one request, with consecutive tokens joined."""
        found: list[ToApi] = []
        for _, message in self.sent:
            if getattr(message, "key", None) != key:
                continue
            if found and isinstance(message, Tokens) and isinstance(last := found[-1], Tokens):
                found[-1] = Tokens(key, last.tokens + message.tokens)
            else:
                found.append(message)
        return found

    def text(self, key: int) -> str:
        return "".join(bytes(message.tokens).decode() for message in self.of(key) if isinstance(message, Tokens))

    def ends(self, key: int) -> list[ToApi]:
        return [message for message in self.of(key) if isinstance(message, Finished | Failed)]

    def reason(self, key: int) -> FinishReason:
        (end,) = self.ends(key)
        assert isinstance(end, Finished)
        return end.reason


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_request_is_accepted_then_answered_then_finished_once(bench: Bench) -> None:
    bench.submit(1, "say hello")
    bench.run()
    kinds = [type(message) for message in bench.of(1)]
    assert kinds == [Accepted, Tokens, Finished]
    assert bench.text(1) == "hello"
    assert bench.reason(1) == FinishReason.STOP


def test_each_running_request_gets_a_token_in_turn(bench: Bench) -> None:
    bench.submit(1, "say aaaaaaaa")
    bench.submit(2, "say bbbbbbbb")
    bench.run()
    order = [message.key for _, message in bench.sent if isinstance(message, Tokens)]
    first = order.index(2)
    assert order[first : first + 6] == [2, 1, 2, 1, 2, 1]


def test_a_long_prompt_does_not_stop_the_others(bench: Bench) -> None:
    bench.submit(1, "count 100")
    bench.steps(4)
    bench.sent.clear()
    bench.submit(2, " " * 800 + "say x")
    bench.steps(60)
    tokens = [message.key for _, message in bench.sent if isinstance(message, Tokens)]
    assert tokens.count(1) >= 29
    assert tokens.count(2) == 0


def test_max_tokens_and_max_length_end_with_length(bench: Bench) -> None:
    bench.submit(1, "count 50", max_tokens=7)
    bench.submit(2, "count 50", max_length=16)
    bench.run()
    assert (bench.text(1), bench.reason(1)) == ("1, 2, 3", FinishReason.LENGTH)
    assert len("count 50\n\x04" + bench.text(2)) == 16
    assert bench.reason(2) == FinishReason.LENGTH


def test_end_token_is_not_part_of_the_answer_unless_ignored(bench: Bench) -> None:
    bench.submit(1, "say a")
    bench.submit(2, "say a", ignore_eos=True, max_tokens=3)
    bench.run()
    tokens = [message.tokens for message in bench.of(1) + bench.of(2) if isinstance(message, Tokens)]
    assert tokens == [[97], [97, 256, 256]]


def test_requests_beyond_max_running_queue_in_arrival_order(tmp_path: Path) -> None:
    bench = Bench(tmp_path, max_running=1, max_waiting=2)
    for key in (1, 2, 3):
        bench.submit(key, "say ab")
    bench.steps(1)
    assert (API, Load(running=1, waiting=2, num_free=0, retry_after=1, capacity=Capacity(1, 2))) in bench.sent
    bench.run()
    ends = [message.key for _, message in bench.sent if isinstance(message, Finished)]
    assert ends == [1, 2, 3]


def test_requests_beyond_the_queue_are_refused_with_the_limit(tmp_path: Path) -> None:
    bench = Bench(tmp_path, max_running=1, max_waiting=1)
    for key in (1, 2, 3):
        bench.submit(key, "say ab")
    bench.run()
    (refused,) = bench.of(3)
    assert isinstance(refused, Refused)
    assert refused.error.code == "queue_full"
    assert "GENAI_MAX_QUEUE lets 1 wait" in refused.error.message
    assert [len(bench.ends(key)) for key in (1, 2)] == [1, 1]


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_cancelled_request_ends_at_once_without_a_message(bench: Bench, steps: int) -> None:
    bench.submit(1, "say hello" + " " * 12)
    bench.steps(steps)
    bench.inbox.put((API, Cancel(1)))
    bench.steps(1)
    assert bench.scheduler.is_idle
    assert bench.ends(1) == []


def test_cancelling_an_ended_request_has_no_effect(bench: Bench) -> None:
    bench.submit(1, "say a")
    bench.run()
    bench.inbox.put((API, Cancel(1)))
    bench.submit(2, "say b")
    bench.run()
    assert bench.text(2) == "b"


def test_the_requests_of_an_api_process_that_died_are_dropped(bench: Bench) -> None:
    bench.inbox.put((OTHER_API, Connected()))
    bench.submit(1, "count 20")
    bench.submit(1, "count 20", connection=OTHER_API)
    bench.steps(4)
    capacity = bench.scheduler.capacity
    assert (API, Load(running=2, others=1, num_free=6, capacity=capacity)) in bench.sent
    bench.inbox.put((OTHER_API, Disconnected()))
    bench.steps(1)
    assert len(bench.scheduler.running) == 1
    bench.sent.clear()
    bench.run()
    assert {connection for connection, _ in bench.sent} == {API}


def test_disconnect_of_a_stranger_has_no_effect(bench: Bench) -> None:
    bench.inbox.put((OTHER_API, Disconnected()))
    bench.submit(1, "say a")
    bench.run()
    assert bench.text(1) == "a"


def test_failing_request_gets_its_error_and_others_continue(bench: Bench) -> None:
    bench.submit(1, "fail at 1; say abc")
    bench.submit(2, "say abc")
    bench.run()
    assert bench.text(1) == "a"
    assert bench.ends(1) == [Failed(1, ErrorInfo("runner_failed", "scripted failure"))]
    assert bench.text(2) == "abc"


def test_internal_error_in_one_request_ends_no_other(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = bench.runner.forward

    def broken(reads: Several[Read]) -> list[Scores]:
        if reads[0].sequence.id == 0:
            raise ZeroDivisionError
        return forward(reads)

    monkeypatch.setattr(bench.runner, "forward", broken)
    bench.submit(1, "say abc")
    bench.submit(2, "say abc")
    bench.run()
    (end,) = bench.ends(1)
    assert isinstance(end, Failed)
    assert end.error.code == "runner_failed"
    assert bench.text(2) == "abc"


@pytest.mark.parametrize("where", ["_scheduler.observe", "_options.observe", "_meter.passed"])
def test_error_after_tokens_were_sent_fails_no_request(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    place, _, name = where.rpartition(".")
    steps: list[Step] = []

    def broken(step: Step, seconds: float) -> None:
        steps.append(step)
        raise ZeroDivisionError

    monkeypatch.setattr(attrgetter(place)(bench.loop), name, broken)
    bench.submit(1, "say ab")
    bench.run()
    assert [type(message) for message in bench.of(1)] == [Accepted, Tokens, Finished]
    assert bench.text(1) == "ab"
    assert len(steps) == 3


def test_interrupted_pass_is_repeated(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = bench.runner.forward
    passes: list[list[int]] = []

    def interrupted(reads: Several[Read]) -> list[Scores]:
        passes.append(list(reads[0].tokens))
        if len(passes) in (2, 3):
            raise Interrupted
        return forward(reads)

    monkeypatch.setattr(bench.runner, "forward", interrupted)
    bench.submit(1, "say hello")
    bench.run()
    assert passes[1] == passes[2] == passes[3] != passes[0]
    assert (bench.text(1), bench.reason(1)) == ("hello", FinishReason.STOP)


def test_only_completed_passes_are_timed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    forward, observe = bench.runner.forward, bench.scheduler.observe
    ends: list[type[Exception]] = [Interrupted, ZeroDivisionError]
    timed: list[Step] = []

    def broken(reads: Several[Read]) -> list[Scores]:
        if ends:
            raise ends.pop(0)
        return forward(reads)

    def noted(step: Step, seconds: float) -> None:
        timed.append(step)
        observe(step, seconds)

    monkeypatch.setattr(bench.runner, "forward", broken)
    monkeypatch.setattr(bench.scheduler, "observe", noted)
    bench.submit(1, "say hello")
    bench.steps(2)
    assert isinstance(bench.ends(1)[0], Failed)
    assert timed == []
    bench.submit(2, "say hello")
    bench.steps(1)
    assert [step.num_tokens for step in timed] == [8]


def test_cancellation_after_an_interrupted_pass_takes_effect(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(reads: Several[Read]) -> list[Scores]:
        raise Interrupted

    monkeypatch.setattr(bench.runner, "forward", interrupted)
    bench.submit(1, "say hello")
    bench.steps(2)
    bench.inbox.put((API, Cancel(1)))
    bench.steps(1)
    assert bench.scheduler.is_idle
    assert bench.ends(1) == []


def test_idle_engine_frees_memory_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    given_back: list[str] = []
    monkeypatch.setattr("genai_server.engine.loop.release_free_memory", lambda: given_back.append("once"))
    for key in (1, 2):
        bench.submit(key, "say x")
        bench.run()
        assert len(given_back) == key - 1
        bench.steps(2)
        assert len(given_back) == key


def test_cache_reset_without_a_batch_frees_nothing(bench: Bench) -> None:
    bench.submit(1, "say a")
    bench.run()
    bench.inbox.put((API, ResetPrefixCache(5)))
    bench.steps(1)
    assert (API, CacheReset(5, 0)) in bench.sent


def test_terminate_ends_all_and_refuses_until_recovery(tmp_path: Path) -> None:
    bench = Bench(tmp_path, max_running=1)
    bench.submit(1, "count 50")
    bench.submit(2, "count 50")
    bench.steps(5)
    bench.inbox.put((API, SetRuntimeOption(7, "terminate_session", "1")))
    bench.submit(3, "say c")
    bench.steps(1)
    assert bench.reason(1) == bench.reason(2) == FinishReason.TERMINATED
    assert "1, 2".startswith(bench.text(1)) and bench.text(1)
    (refused,) = bench.of(3)
    assert isinstance(refused, Refused)
    assert refused.error.code == "session_terminated"
    bench.inbox.put((API, SetRuntimeOption(8, "terminate_session", "0")))
    bench.submit(4, "say d")
    bench.run()
    assert bench.text(4) == "d"


def test_runtime_option_works_without_a_writable_state_file(tmp_path: Path) -> None:
    bench = Bench(tmp_path, state_file=tmp_path / "gone" / "state.json")
    bench.submit(1, "count 50")
    bench.steps(3)
    bench.inbox.put((API, SetRuntimeOption(7, "enable_profiling", "1")))
    bench.inbox.put((API, SetRuntimeOption(8, "terminate_session", "1")))
    bench.steps(1)
    assert bench.reason(1) == FinishReason.TERMINATED
    replies = {message.call: message.options for _, message in bench.sent if isinstance(message, Reply)}
    assert (replies[7].enable_profiling, replies[7].profile_stopped) == (DEFAULT_PREFIX, None)
    assert replies[8].terminate_session == "1"


def test_terminate_and_recover_in_one_step_ends_running_requests(bench: Bench) -> None:
    bench.submit(1, "count 50")
    bench.steps(3)
    bench.inbox.put((API, SetRuntimeOption(7, "terminate_session", "1")))
    bench.inbox.put((API, SetRuntimeOption(8, "terminate_session", "0")))
    bench.steps(1)
    assert bench.reason(1) == FinishReason.TERMINATED


def test_terminating_by_request_id_says_whether_it_matched(bench: Bench) -> None:
    bench.submit(1, "count 50")
    bench.submit(2, "count 50")
    bench.steps(3)
    bench.inbox.put((API, SetRuntimeOption(7, "terminate_session", "1", "r2")))
    bench.inbox.put((API, SetRuntimeOption(8, "terminate_session", "1", "r9")))
    bench.steps(1)
    replies = {message.call: message for _, message in bench.sent if isinstance(message, Reply)}
    assert (replies[7].matched, replies[8].matched) == (True, False)
    assert replies[7].options.terminate_session == "0"
    assert bench.reason(2) == FinishReason.TERMINATED
    assert bench.ends(1) == []


def test_profiling_writes_one_file_per_pass_from_its_token_on(bench: Bench, tmp_path: Path) -> None:
    bench.submit(1, "say abcdefghij")
    bench.steps(5)  # two chunks of prompt, the second of which yields token 0, and tokens 1 to 3
    bench.inbox.put((API, SetRuntimeOption(7, "enable_profiling", "p")))
    bench.steps(3)
    bench.inbox.put((API, SetRuntimeOption(8, "enable_profiling", "0")))
    bench.run()
    replies = {message.call: message.options for _, message in bench.sent if isinstance(message, Reply)}
    produced = len(bench.text(1))
    assert produced == 10
    assert [(request.request_id, request.from_token) for request in replies[7].requests] == [("r1", 4)]
    assert replies[8].requests == []
    assert len(list(tmp_path.glob("scripted/p_*.json"))) == 3


def test_later_requests_are_profiled_from_their_first_token(bench: Bench, tmp_path: Path) -> None:
    bench.inbox.put((API, SetRuntimeOption(7, "enable_profiling", "1")))
    bench.submit(1, "say ab")
    bench.steps(1)
    bench.inbox.put((API, GetRuntimeOptions(8)))
    bench.steps(1)
    (reply,) = [message for _, message in bench.sent if isinstance(message, Reply) and message.call == 8]
    assert reply.options.enable_profiling == "onnxruntime_run_profile"
    assert [request.from_token for request in reply.options.requests] == [0]
    bench.run()
    # one chunk of prompt yields token 0, then one pass each for token 1 and the end
    assert len(list(tmp_path.glob("scripted/onnxruntime_run_profile_*.json"))) == 3


def test_unusable_profile_folder_is_reported_without_failures(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    bench = Bench(blocked)
    bench.submit(1, "say ab")
    bench.inbox.put((API, SetRuntimeOption(7, "enable_profiling", "1")))
    bench.run()
    (reply,) = [message for _, message in bench.sent if isinstance(message, Reply)]
    assert reply.options.enable_profiling == "0"
    assert reply.options.profile_stopped is not None
    assert bench.text(1) == "ab"


def test_phases_split_the_time_in_the_engine(bench: Bench) -> None:
    bench.submit(1, "say abc")
    bench.run()
    (end,) = bench.ends(1)
    assert isinstance(end, Finished)
    assert end.phases.queue > 0
    assert end.phases.prefill > 0
    assert end.phases.decode > 0


def test_progress_is_sent_after_each_chunk_on_demand(bench: Bench) -> None:
    bench.submit(1, "say abcdefghij", progress=True)
    bench.run()
    kinds = [type(message) for message in bench.of(1)]
    assert kinds == [Accepted, Progress, Progress, Tokens, Finished]
    assert [message.num_read for message in bench.of(1) if isinstance(message, Progress)] == [
        8,
        len("say abcdefghij") + 2,
    ]


def test_failed_copy_of_a_cached_prefix_fails_no_request(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Any] = []

    def broken(sequence: Any) -> int:
        tried.append(sequence)
        raise RunnerFailed("no memory")

    monkeypatch.setattr(bench.runner, "match_again", broken)
    bench.runner.abilities = replace(bench.runner.abilities, caches_prefixes=True)
    bench.submit(1, "say a")
    bench.run()
    assert bench.text(1) == "a"
    assert len(tried) == 1


class Overflowing(ScriptedPooledRunner):
    """A runner whose vectors of texts that start with token 7 contain a NaN."""

    def forward(self, rows: Several[Read]) -> list[Scores]:
        found = super().forward(rows)
        for row, scores in zip(rows, found, strict=True):
            if row.tokens[0] == 7 and scores.vectors is not None:
                scores.vectors[0, 0] = np.nan
        return found


def test_a_vector_that_is_not_finite_fails_its_own_request_only(tmp_path: Path) -> None:
    bench = Bench(tmp_path, pooled=Overflowing(PoolingModel(Task.EMBED, "model.onnx", 9, 257, dimensions=4)))
    for key, tokens in ((1, [7, 1]), (2, [8, 1])):
        bench.inbox.put((API, Submit(key, GenerationRequest(f"r{key}", tokens, 0, 2, texts=[PooledText(2)]))))
    bench.run()
    (end,) = bench.ends(1)
    assert isinstance(end, Failed)
    assert end.error.code == "runner_failed"
    assert [type(message) for message in bench.of(2)] == [Accepted, Vectors, Finished]
