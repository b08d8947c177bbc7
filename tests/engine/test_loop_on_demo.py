"""The loop on the demo model, in the batch and on Generators: parameters beyond plain answers."""

import json
import re
import threading
from collections import abc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _models.driven import Driven
from llguidance import LLMatcher
from numpy.typing import NDArray

from genai_server.engine.runners.base import Interrupted
from genai_server.engine.runners.batched import BatchedRunner
from genai_server.engine.runners.loaded_model import LoadedModel
from genai_server.engine.runners.og_generator import OgGeneratorRunner
from genai_server.engine.sampling.grammar import Guidance
from genai_server.engine.scheduling.scheduler_output import ScheduledChunk, Step
from genai_server.engine.scores import Logits, Scores
from genai_server.errors import RunnerFailed
from genai_server.messages.admin import (
    CancelRequest,
    ProfilePlan,
    ResetPrefixCache,
    SetRuntimeOption,
    SlowTokens,
    StartProfile,
)
from genai_server.messages.engine_protocol import Cancel, PromptLogprobs, Submit
from genai_server.messages.generation_request import FinishReason, GenerationRequest, Sampling
from genai_server.profiles.manifest import find_manifests
from tests.demo_device import MAX_LENGTH, DemoDevice, prompt
from tests.engine.model_runners import TIE, batched_runner
from tests.hand_clock import HandClock
from tests.stepped_loop import API

PERSON = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "count": {"type": "integer", "maximum": 99}},
    "required": ["city", "count"],
    "additionalProperties": False,
}
GRAMMARS = {
    # A model as small as this one never stops writing blanks once it has started.
    "json schema": LLMatcher.grammar_from_json_schema(json.dumps(PERSON), overrides={"whitespace_flexible": False}),
    "regex": LLMatcher.grammar_from_regex("(Rome|Oslo), [0-9]{3}!"),
    "lark": 'start: item (", " item){2}\nitem: "capital" | "city"',
}
PENALIZED: dict[str, Any] = {
    "sampling": Sampling(0.8, seed=5, frequency_penalty=1.0, repetition_penalty=1.2),
    "top_logprobs": 2,
}


@pytest.fixture(params=["batch", "generators"])
def device(
    request: pytest.FixtureRequest,
    generator: OgGeneratorRunner,
    batched: BatchedRunner,
    guidance: Guidance,
    tmp_path: Path,
) -> Iterator[DemoDevice]:
    batched.forget()  # a preempted sequence would continue from the slot of another test's sequence with its number
    device = DemoDevice(
        LoadedModel(batched, batched) if request.param == "batch" else LoadedModel(generator), guidance, tmp_path
    )
    yield device
    assert batched.slots.num_running == 0
    assert generator._generators == {}


def fits(kind: str, text: str) -> bool:
    if kind == "json schema":
        value = json.loads(text)
        return isinstance(value["city"], str) and len(value["city"]) <= 12 and value["count"] <= 99 and len(value) == 2
    pattern = {"regex": "(Rome|Oslo), [0-9]{3}!", "lark": "(capital|city)(, (capital|city)){2}"}[kind]
    return re.fullmatch(pattern, text) is not None


# grammars


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.5, seed=3)])
@pytest.mark.parametrize("kind", GRAMMARS)
def test_an_answer_fits_its_grammar_and_stops_where_that_ends(
    device: DemoDevice, kind: str, sampling: Sampling
) -> None:
    device.answer(1, "What is the capital of Italy?", grammar=GRAMMARS[kind], sampling=sampling)
    assert device.reason(1) == FinishReason.STOP
    assert fits(kind, device.text(1)), device.text(1)


def test_rows_with_and_without_grammars_are_independent(device: DemoDevice) -> None:
    texts = ["Count from 1 to 12.", "What is the capital of Norway?", "Hello!"]
    alone = {}
    for key, text in enumerate(texts):
        device.answer(key, text, sampling=Sampling(0.7, seed=key))
        alone[key] = device.tokens(key)
    for key, text in enumerate(texts):
        device.submit(10 + key, text, sampling=Sampling(0.7, seed=key))
    for key, grammar in enumerate(GRAMMARS.values()):
        device.submit(20 + key, texts[key], grammar=grammar)
    device.run(10, 11, 12, 20, 21, 22)
    assert [device.tokens(10 + key) for key in alone] == list(alone.values())
    for key, kind in enumerate(GRAMMARS):
        assert fits(kind, device.text(20 + key))


# profiles during an answer


def test_profiled_request_keeps_grammar_penalties_and_logprobs(plain: DemoDevice, tmp_path: Path) -> None:
    fields = PENALIZED | {"grammar": GRAMMARS["json schema"]}
    plain.answer(1, "What is the capital of Italy?", **fields)
    plain.submit(2, "What is the capital of Italy?", **fields)
    plain.run_to(2, 4)
    plain.put(SetRuntimeOption(7, "enable_profiling", "p", "r2"))
    plain.run_to(2, 8)
    plain.put(SetRuntimeOption(8, "enable_profiling", "0", "r2"))
    plain.run(2)
    assert len(list(tmp_path.glob("cpu/p_*.json"))) == 4
    assert plain.tokens(2) == plain.tokens(1)
    assert len(plain.logprobs(2)) == len(plain.tokens(2))


@pytest.mark.parametrize("fields", [{}, {"prompt_logprobs": True}])
def test_profiled_request_answers_the_same(device: DemoDevice, tmp_path: Path, fields: dict[str, Any]) -> None:
    text = "What is the capital of Italy?"
    device.answer(1, text, top_logprobs=1, **fields)
    device.put(SetRuntimeOption(7, "enable_profiling", "p"))
    device.answer(2, text, top_logprobs=1, cache_prompt=False, **fields)
    assert device.tokens(2) == device.tokens(1)
    for of in (device.logprobs, device.prompt_logprobs):
        assert [each.logprob for each in of(2)] == pytest.approx([each.logprob for each in of(1)], abs=1e-4)
    assert device.end(2).num_profiled == len(device.tokens(2))
    assert len(list(tmp_path.glob("cpu/p_*.json"))) > len(device.tokens(2))


def test_profiled_request_is_terminated_or_preempted(
    device: DemoDevice, batched: BatchedRunner, tmp_path: Path
) -> None:
    device.put(SetRuntimeOption(7, "enable_profiling", "p"))
    device.submit(1, "Count from 1 to 30.", ignore_eos=True)
    device.run_to(1, 3)
    (sequence,) = device.scheduler.running
    if sequence.batched:
        device.scheduler._preempt(sequence)
    device.run_to(1, 6)
    num_files = len(list(tmp_path.glob("cpu/p_*.json")))
    assert sequence.profile.num_tokens == 6
    device.put(SetRuntimeOption(8, "terminate_session", "1", "r1"))
    device.run(1)
    assert device.reason(1) == FinishReason.TERMINATED
    assert len(list(tmp_path.glob("cpu/p_*.json"))) == num_files
    assert batched._profiles == {}


def test_interrupted_and_failed_passes_leave_no_file(
    plain: DemoDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward, errors = BatchedRunner.forward, [RunnerFailed("no"), Interrupted()]

    def failing(self: BatchedRunner, chunks: abc.Sequence[ScheduledChunk]) -> list[Scores]:
        if chunks[0].sequence.num_produced == 3 and errors:
            Path(f"{self._profiles[chunks[0].sequence.id]}_torn.json").write_text("[]")
            raise errors.pop()
        return forward(self, chunks)

    monkeypatch.setattr(BatchedRunner, "forward", failing)
    plain.put(SetRuntimeOption(7, "enable_profiling", "p"))
    plain.answer(1, "Count from 1 to 12.", cache_prompt=False)
    (found,) = find_manifests(tmp_path)
    assert {each.file for each in found.passes} == {path.name for path in tmp_path.glob("cpu/p_*.json")}
    assert len(found.passes) >= 3
    assert (errors, plain.failure(1).message) == ([], "no")


# profile sessions


@pytest.mark.parametrize(
    ("plan", "num_profiled"),
    [
        (ProfilePlan("p", last_token=0), None),
        (ProfilePlan("p", first_token=7, last_token=9), 3),  # in a batch, one request at a time
        (ProfilePlan("p", "r2", first_token=2, last_token=5), 4),
        (ProfilePlan("p", slow=SlowTokens(over_ms=1e-6, num_tokens=2, max_per_hour=3)), None),
    ],
    ids=["prompts", "tokens in the middle", "one request", "what follows slow tokens"],
)
def test_profiled_answers_have_the_same_tokens(device: DemoDevice, plan: ProfilePlan, num_profiled: int | None) -> None:
    texts = ("What is the capital of Italy?", "Count from 1 to 12.", "How are you today?")
    for key, text in enumerate(texts):
        device.submit(key, text)
    device.run(0, 1, 2)
    if plan.request_id is None:
        device.put(StartProfile(9, plan))
    for key, text in enumerate(texts, 10):
        device.submit(key, text, request_id=f"r{key - 9}")
    device.steps(1)
    if plan.request_id is not None:  # which must exist
        device.put(StartProfile(9, plan))
    device.run(10, 11, 12)
    for key in range(3):
        assert device.tokens(key + 10) == device.tokens(key)
    ends = [device.end(key) for key in (10, 11, 12)]
    assert max(end.num_profiled for end in ends) == num_profiled or num_profiled is None
    assert sum(end.num_profiled for end in ends) > 0
    if plan.request_id is not None:
        assert [end.key for end in ends if end.num_profiled] == [11]


# log probabilities


def log_softmax(logits: Logits) -> NDArray[np.float64]:
    values = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    found: NDArray[np.float64] = values - np.log(np.exp(values).sum(axis=-1, keepdims=True))
    return found


def positions(on: OgGeneratorRunner, tokens: list[int]) -> NDArray[np.float64]:
    """The log probabilities [tokens, vocab_size] after each token of a text read in one pass."""
    generator = Driven(on)
    generator.open(99, tokens, MAX_LENGTH)
    try:
        return log_softmax(generator.prefill(99, tokens, positions=True))
    finally:
        generator.close(99)


def test_answer_logprobs_are_log_softmax_of_the_logits(device: DemoDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    runners = device.loop._runners
    forward = runners.forward
    given: list[Logits] = []

    def noted(step: Step) -> list[Scores]:
        scores = forward(step)
        given.extend(found.last.copy() for s, found in zip(step.sequences, scores, strict=True) if not s.num_unread)
        return scores

    monkeypatch.setattr(runners, "forward", noted)
    sampling = Sampling(1.2, seed=1, frequency_penalty=0.5, repetition_penalty=1.1, logit_bias={300: 5.0})
    device.answer(1, "Count from 1 to 9.", top_logprobs=3, sampling=sampling)
    found = device.logprobs(1)
    assert [logprob.token for logprob in found] == device.tokens(1)
    for logprob, row in zip(found, map(log_softmax, given), strict=False):
        assert logprob.logprob == pytest.approx(row[logprob.token], abs=1e-4)
        assert [p for _, p in logprob.top] == pytest.approx(sorted(row, reverse=True)[:3], abs=1e-4)
        assert [row[token] for token, _ in logprob.top] == sorted(row, reverse=True)[:3]


@pytest.mark.parametrize("others", [0, 1])
def test_prompt_logprobs_do_not_depend_on_chunks(device: DemoDevice, generator: OgGeneratorRunner, others: int) -> None:
    text = "What is the capital of Italy? " * 7
    if others:
        device.submit(2, "Count from 1 to 200.", max_tokens=200)
        device.run_to(2, 1)
    tokens = prompt(text)
    expected = positions(generator, tokens)
    wanted = [row[token] for row, token in zip(expected, tokens[1:], strict=False)]
    for key, max_tokens in ((1, 0), (3, 2)):  # the second must not take it from the cache
        device.answer(key, text, prompt_logprobs=True, top_logprobs=1, max_tokens=max_tokens)
        found = device.prompt_logprobs(key)
        assert [logprob.token for logprob in found] == tokens[1:]
        # The library's kernels round otherwise than those of a batch.
        assert [logprob.logprob for logprob in found] == pytest.approx(wanted, abs=0.2)
        for logprob, row in zip(found, expected, strict=False):
            assert row[logprob.top[0][0]] >= row.max() - TIE
    assert device.prompt_logprobs(1) == device.prompt_logprobs(3)
    chunks = [len(m.logprobs) for m in device.messages(PromptLogprobs, 1)]
    assert len(chunks) > 2
    assert device.reason(1) == FinishReason.LENGTH
    assert device.tokens(1) == []
    device.run(2) if others else None


# limits of tokens


def test_a_prompt_of_one_token_may_be_only_read(device: DemoDevice) -> None:
    device.put_request(1, [100], max_tokens=0, max_length=MAX_LENGTH, prompt_logprobs=True)
    device.run(1)
    assert device.reason(1) == FinishReason.LENGTH
    assert (device.tokens(1), device.prompt_logprobs(1)) == ([], [])


def test_a_prompt_of_several_answers_is_read_once(device: DemoDevice) -> None:
    text = "How do you do today? " * 5
    for key in (1, 2, 3, 4):
        device.submit(key, text, max_tokens=3, more=key < 4)
    device.run(1, 2, 3, 4)
    other = "How are you today? " * 5  # whose first request has no answer
    assert device.answer(5, other, max_tokens=0) == []
    device.answer(6, other)
    wanted = [len(prompt(each)) - 2 if device.loop._loaded.batch else 0 for each in (text, text, text, other)]
    assert [device.end(key).num_cached for key in (2, 3, 4, 6)] == wanted
    assert len({tuple(device.tokens(key)) for key in (1, 2, 3, 4)}) == 1


# low priority

FULL = 6  # places of a device


def _displace(device: DemoDevice, key: int) -> None:
    """Let other requests take all places, and the slots with the tokens of others, until they end."""
    others = range(100 * key, 100 * key + FULL)
    for other in others:
        device.submit(other, f"What is {other} plus 4?", max_tokens=3, ignore_eos=True)
    device.run(*others)


@pytest.mark.parametrize(
    ("device", "fields"),
    [
        ("batch", {}),
        ("batch", PENALIZED),
        ("batch", {"grammar": GRAMMARS["json schema"], "sampling": Sampling(0.8, seed=5)}),
        ("batch", {"top_logprobs": 1, "prompt_logprobs": True, "max_tokens": 20}),
        ("generators", PENALIZED),
    ],
    ids=["greedy", "seed and penalties", "grammar", "prompt log probabilities", "generators"],
    indirect=["device"],
)
def test_preempted_answer_continues_as_if_nothing_had_happened(device: DemoDevice, fields: dict[str, Any]) -> None:
    text = "Count from 1 to 12, and tell me the capital of Italy."
    device.answer(1, text, **fields)
    device.put(ResetPrefixCache(0))
    device.submit(2, text, low_priority=True, **fields)
    device.steps(2)  # while its prompt is read
    (sequence,) = device.scheduler.running
    _displace(device, 3)
    for key in (4, 5):
        device.run_to(2, len(device.tokens(2)) + 4)
        _displace(device, key)
    device.run(2)
    assert sequence.num_preemptions >= 3
    assert (device.tokens(2), device.reason(2)) == (device.tokens(1), device.reason(1))
    for of in (device.logprobs, device.prompt_logprobs):
        assert [each.token for each in of(2)] == [each.token for each in of(1)]
        if sequence.batched:  # its tokens are read again in other passes, with the same bits
            assert of(2) == of(1)


def test_preempted_sequence_reads_nothing_again_in_its_old_slot(batched: BatchedRunner, plain: DemoDevice) -> None:
    batched.forget()
    plain.submit(1, "Count from 1 to 12.", low_priority=True)
    plain.run_to(1, 5)
    (sequence,) = plain.scheduler.running
    num_read = sequence.num_read
    plain.scheduler._preempt(sequence)
    plain.steps(1)
    assert (sequence.num_preemptions, sequence.num_read) == (1, num_read + 1)
    plain.run(1)
    assert plain.tokens(1) == plain.answer(2, "Count from 1 to 12.")


@pytest.mark.parametrize("num_others", [0, 2], ids=["one prompt", "decoding and a prompt"])
def test_request_interrupts_passes_of_the_background(
    session: Any, guidance: Guidance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_others: int
) -> None:
    runner = batched_runner(session=session, num_slots=6, max_length=MAX_LENGTH)
    device = DemoDevice(LoadedModel(runner, runner), guidance, tmp_path)
    for key in range(10, 10 + num_others):
        device.submit(key, "Count from 1 to 12.", low_priority=True)
        device.run_to(key, 2)
    device.submit(1, "How do you do today? " * 9, low_priority=True)
    device.steps(1)
    (sequence,) = (each for each in device.scheduler.running if each.request.request_id == "r1")
    num_read, tokens = sequence.num_read, {key: device.tokens(key) for key in range(10, 10 + num_others)}

    def arrive() -> None:
        request = GenerationRequest("r2", prompt("Hello!"), 4, MAX_LENGTH)
        device.put(Submit(2, request))
        device.loop.interrupts.ask(API, Submit(2, request))

    run = runner.session.run

    def run_late(*arguments: Any) -> Any:
        arrive()
        return run(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(runner.session, "run", run_late)
        device.steps(1)
    assert device.loop.inbox.qsize() == 1
    # Nothing was read, and the next passes are those of the request.
    assert (sequence.num_read, {key: device.tokens(key) for key in tokens}) == (num_read, tokens)
    device.run(2)
    assert (sequence.num_read, {key: device.tokens(key) for key in tokens}) == (num_read, tokens)
    device.run(1, *tokens)
    if tokens:
        count = device.answer(20, "Count from 1 to 12.")
        assert [device.tokens(key) for key in tokens] == [count] * num_others
    assert device.tokens(1) == device.answer(3, "How do you do today? " * 9)


@pytest.mark.parametrize("how", ["disconnect", "deadline", "device", "unique id", "name", "cancel"])
def test_each_end_interrupts_the_chunk_of_its_prompt_every_time(
    session: Any, guidance: Guidance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    runner = batched_runner(session=session, num_slots=6, max_length=MAX_LENGTH)
    clock = HandClock()
    device = DemoDevice(LoadedModel(runner, runner), guidance, tmp_path, clock=clock)
    interrupt, interrupted = runner.interrupt, threading.Event()

    def interrupt_and_tell() -> None:
        interrupt()
        interrupted.set()

    monkeypatch.setattr(runner, "interrupt", interrupt_and_tell)
    run, is_awaited = runner.session.run, False

    def run_late(*arguments: Any) -> Any:
        if is_awaited:
            if message is not None:  # as the connections' thread does
                device.put(message)
                device.loop.interrupts.ask(API, message)
            assert interrupted.wait(90)
            clock.wait(1.0)  # past the deadline
        return run(*arguments)

    monkeypatch.setattr(runner.session, "run", run_late)
    for key in range(1, 5):
        name, unique_id = f"r{key}", f"u{key}"
        message = {
            "disconnect": Cancel(key),
            "deadline": None,
            "device": SetRuntimeOption(0, "terminate_session", "1"),
            "unique id": SetRuntimeOption(0, "terminate_session", "1", unique_id),
            "name": SetRuntimeOption(0, "terminate_session", "1", name),
            "cancel": CancelRequest(0, name),
        }[how]
        timeout = 0.01 if how == "deadline" else None
        device.submit(key, "How do you do today? " * 9, cache_prompt=False, unique_id=unique_id, timeout=timeout)
        interrupted.clear()
        is_awaited = True
        device.steps(1)  # the first chunk
        is_awaited = False
        (sequence,) = device.scheduler.running
        assert sequence.num_read == 0
        device.put(SetRuntimeOption(1, "terminate_session", "0"))
        device.steps(1)
        assert device.scheduler.is_idle
        assert sequence.num_read == 0


def test_request_that_arrives_first_prevents_a_background_pass(plain: DemoDevice) -> None:
    plain.submit(1, "Hello!", low_priority=True)
    choose = plain.scheduler.next_step

    def arrive() -> Step | None:
        plain.scheduler.next_step = choose  # type: ignore[method-assign]
        plain.submit(2, "Hello!", max_tokens=2)
        return choose()

    plain.scheduler.next_step = arrive  # type: ignore[method-assign]
    plain.steps(1)
    (sequence,) = plain.scheduler.running
    assert sequence.num_read == sequence.num_cached
    plain.run(1, 2)


def test_trial_after_failures_waits_until_a_sequence_has_ended(device: DemoDevice) -> None:
    keys = range(6)
    for key in keys:
        device.submit(key, "Hello!", max_tokens=9)
    for key in keys:
        device.run_to(key, 1)
    running = device.scheduler.running
    assert len(running) == len(keys)
    for sequence in running:  # so that no pass of theirs is complete
        sequence.is_choosing = True
    device.loop._requests.num_failed = 3
    device.steps(1)
    for sequence in running:
        sequence.is_choosing = False
    device.run(*keys)
    assert all(device.tokens(key) for key in keys)
