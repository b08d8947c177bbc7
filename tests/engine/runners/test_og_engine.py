"""onnxruntime-genai's own batch on the demo model. On a CPU it is static, with at most four rows; so these tests end
where a GPU's paged attention would let requests come and go.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher

from genai_server.engine.runners.loaded_model import LoadedModel
from genai_server.engine.runners.og_engine import OgEngineRunner
from genai_server.engine.runners.og_generator import OgGeneratorRunner
from genai_server.engine.runners.runner_pair import RunnerPair
from genai_server.engine.runners.warm_up import scores_prompts, warm_up
from genai_server.engine.sampling.continuation import choose_next_token
from genai_server.engine.sampling.grammar import Guidance, bytes_guidance, model_guidance
from genai_server.engine.scheduling.scheduler import Scheduler
from genai_server.engine.scheduling.scheduler_output import Read, Step
from genai_server.engine.sequence import Sequence
from genai_server.errors import RunnerFailed
from genai_server.messages.admin import CallFailed, RuntimeOptionsReply, SetRuntimeOption, StartProfile
from genai_server.messages.generation_request import FinishReason, GenerationRequest, Sampling
from genai_server.messages.protocol import Cancel, Refused
from genai_server.profile_plan import ProfilePlan
from scripts._models.driven import Driven
from tests.demo_device import MAX_LENGTH, DemoDevice, prompt
from tests.fake_library import EOS, FakeLibrary, fake_generator
from tests.stepped_loop import SteppedLoop

ROWS = 4
QUESTIONS = ("What is the capital of Italy?", "Count from 1 to 12.", "Hello!", "What is 3 plus 4?")
CITY = LLMatcher.grammar_from_json_schema(
    json.dumps(
        {
            "type": "object",
            "properties": {"city": {"enum": ["Rome", "Oslo"]}},
            "required": ["city"],
            "additionalProperties": False,
        }
    ),
    overrides={"whitespace_flexible": False},
)


@pytest.fixture(scope="module")
def library(generator: OgGeneratorRunner) -> OgEngineRunner:
    return OgEngineRunner(generator, 16)


@pytest.fixture(scope="module")
def guidance(generator: OgGeneratorRunner) -> Guidance:
    return model_guidance(generator.model_dir, generator.model)


@pytest.fixture
def device(
    generator: OgGeneratorRunner, library: OgEngineRunner, guidance: Guidance, tmp_path: Path
) -> Iterator[DemoDevice]:
    device = DemoDevice(LoadedModel(generator, library), guidance, tmp_path)
    yield device
    assert not library._turns
    assert not library._engine.has_pending_requests()
    assert generator._generators == {}


@pytest.fixture
def alone(generator: OgGeneratorRunner, guidance: Guidance, tmp_path: Path) -> DemoDevice:
    """The same model on Generators."""
    return DemoDevice(LoadedModel(generator), guidance, tmp_path)


# answers


def test_number_of_rows_is_that_of_the_librarys_configuration(
    library: OgEngineRunner, generator: OgGeneratorRunner
) -> None:
    assert library.abilities.max_rows == ROWS
    assert OgEngineRunner(generator, 2).abilities.max_rows == 2
    assert LoadedModel(generator, library).batching.scheduler == "library"


def test_answers_side_by_side_are_those_of_generators(device: DemoDevice, alone: DemoDevice) -> None:
    for key, text in enumerate(QUESTIONS):
        device.submit(key, text)
        alone.submit(key, text)
    device.run(*range(len(QUESTIONS)))
    alone.run(*range(len(QUESTIONS)))
    for key in range(len(QUESTIONS)):
        assert device.tokens(key) == alone.tokens(key)
        assert device.reason(key) == alone.reason(key) == FinishReason.STOP


def test_later_request_waits_while_the_first_ones_stream(device: DemoDevice, alone: DemoDevice) -> None:
    device.submit(1, "Count from 1 to 30.", max_tokens=80)
    device.run_to(1, 5)
    device.submit(2, "Hello!")
    seen = []
    while not device.tokens(2):
        device.steps(1)
        seen.append(len(device.tokens(1)))
    device.run(1, 2)
    assert len(set(seen)) > 40  # token by token, not all at once
    assert device.tokens(1) == alone.answer(1, "Count from 1 to 30.", max_tokens=80)
    assert device.tokens(2) == alone.answer(2, "Hello!")


def test_more_requests_than_rows_all_end(device: DemoDevice) -> None:
    for key in range(6):
        device.submit(key, QUESTIONS[key % 4])
    device.run(*range(6))
    assert device.tokens(4) == device.tokens(0)
    assert device.tokens(5) == device.tokens(1)


# parameters of requests


def test_the_length_of_an_answer_is_the_requests(device: DemoDevice) -> None:
    assert len(device.answer(1, "Count from 1 to 30.", max_tokens=7)) == 7
    assert device.reason(1) == FinishReason.LENGTH
    assert len(device.answer(2, "Hello!", max_tokens=40, ignore_eos=True)) == 40
    assert device.answer(5, "Hello!", max_tokens=0) == []
    assert device.reason(5) == FinishReason.LENGTH
    least = len(device.answer(3, "Hello!")) + 3
    assert len(device.answer(4, "Hello!", min_tokens=least)) >= least


def test_sampling_is_the_librarys(device: DemoDevice, alone: DemoDevice) -> None:
    greedy = alone.answer(1, QUESTIONS[0])
    assert device.answer(1, QUESTIONS[0], sampling=Sampling(1.5, top_k=1)) == greedy
    assert device.answer(2, QUESTIONS[0], sampling=Sampling(1.5, top_p=1e-6)) == greedy
    hot = {tuple(device.answer(3 + n, QUESTIONS[0], sampling=Sampling(5.0), max_tokens=9)) for n in range(6)}
    assert len(hot) > 1
    repeated = Sampling(repetition_penalty=3.0)
    assert device.answer(20, QUESTIONS[1], sampling=repeated) == alone.answer(20, QUESTIONS[1], sampling=repeated)


@pytest.mark.parametrize(
    ("grammar", "texts"),
    [
        (CITY, {'{"city": "Rome"}', '{"city":"Rome"}', '{"city": "Oslo"}', '{"city":"Oslo"}'}),
        (LLMatcher.grammar_from_regex("(Rome|Oslo)!"), {"Rome!", "Oslo!"}),
        ('start: "capital" | "city"', {"capital", "city"}),
    ],
    ids=["json schema", "regex", "lark"],
)
def test_an_answer_fits_its_grammar_and_stops_where_that_ends(
    device: DemoDevice, grammar: str, texts: set[str]
) -> None:
    device.answer(1, "What is the capital of Italy?", grammar=grammar)
    assert device.text(1) in texts
    assert device.reason(1) == FinishReason.STOP


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"exact": True}, "exact"),
        ({"top_logprobs": 0}, "logprobs"),
        ({"prompt_logprobs": True}, "logprobs"),
        ({"sampling": Sampling(logit_bias={1: 2.0})}, "logit_bias"),
        ({"sampling": Sampling(allowed_tokens=b"\1" * 240)}, "allowed_token_ids"),
        ({"sampling": Sampling(bad_words=[[1]])}, "bad_words"),
        ({"sampling": Sampling(frequency_penalty=0.1)}, "frequency_penalty"),
        ({"sampling": Sampling(presence_penalty=0.1)}, "presence_penalty"),
        ({"sampling": Sampling(repetition_penalty=1.1, repeat_last_n=9)}, "repeat_last_n"),
        ({"sampling": Sampling(1.0, min_p=0.1)}, "min_p"),
        ({"sampling": Sampling(1.0, seed=1)}, "seed"),
        ({"grammar": '{"grammars": [{"lark_grammar": "start: @b"}, {"name": "b", "json_schema": {}}]}'}, "grammar"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_unsupported_field_is_refused_by_name_before_any_work(
    device: DemoDevice, fields: dict[str, Any], param: str
) -> None:
    device.submit(1, "Hello!", **fields)
    device.steps(1)
    (refused,) = device.messages(Refused)
    assert refused.error.param == param
    assert "onnxruntime-genai's own batch" in refused.error.message


def test_field_without_effect_is_accepted(library: OgEngineRunner) -> None:
    library.check(GenerationRequest("r", [1], 5, 9, Sampling(0.0, seed=7, min_p=0.2)))


def test_no_prompt_is_scored(generator: OgGeneratorRunner, library: OgEngineRunner) -> None:
    assert not scores_prompts(LoadedModel(generator, library))


# external ends


def test_cancelled_request_frees_its_place_and_others_continue(device: DemoDevice, alone: DemoDevice) -> None:
    device.submit(1, "Count from 1 to 30.", max_tokens=200, ignore_eos=True)
    device.submit(2, "Count from 1 to 12.")
    device.run_to(1, 5)
    device.put(Cancel(1))
    device.run(2)
    assert device.tokens(2) == alone.answer(2, "Count from 1 to 12.")
    assert len(device.tokens(1)) < 9


def test_terminate_session_ends_running_requests_and_recovers(device: DemoDevice) -> None:
    device.submit(1, "Count from 1 to 30.", ignore_eos=True, max_tokens=300)
    device.run_to(1, 3)
    device.put(SetRuntimeOption(7, "terminate_session", "1"))
    device.run(1)
    assert device.reason(1) == FinishReason.TERMINATED
    device.submit(2, "Hello!")
    device.steps(1)
    assert [m.error.code for m in device.messages(Refused)] == ["session_terminated"]
    device.put(SetRuntimeOption(8, "terminate_session", "0"))
    assert device.answer(3, "Hello!")


# profiles


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(repetition_penalty=1.2)], ids=["plain", "penalized"])
def test_a_profiled_answer_goes_on_alone_and_stays_so(
    device: DemoDevice, alone: DemoDevice, sampling: Sampling, tmp_path: Path
) -> None:
    device.submit(1, "Count from 1 to 12.", sampling=sampling)
    device.run_to(1, 4)
    device.put(SetRuntimeOption(7, "enable_profiling", "p", "r1"))
    device.run_to(1, 8)
    device.put(SetRuntimeOption(8, "enable_profiling", "0", "r1"))
    device.run(1)
    assert len(list(tmp_path.glob("cpu/p_*.json"))) == 4
    assert device.tokens(1) == alone.answer(1, "Count from 1 to 12.", sampling=sampling)


def test_profiles_are_refused_if_only_the_batch_runs_the_model(
    generator: OgGeneratorRunner, guidance: Guidance, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def cannot(*_: object) -> None:
        raise RunnerFailed("onnxruntime-genai: paged attention wants an Engine")

    monkeypatch.setattr(generator, "open", cannot)
    loaded = LoadedModel(generator, OgEngineRunner(generator, 4))
    warm_up(loaded, 24)
    device = DemoDevice(loaded, guidance, tmp_path)
    device.submit(1, "Count from 1 to 12.")
    device.run_to(1, 1)
    device.put(SetRuntimeOption(7, "enable_profiling", "p"))
    device.put(SetRuntimeOption(8, "enable_profiling", "p", "r1"))
    device.put(StartProfile(9, ProfilePlan("p")))
    device.run(1)
    reasons = [m.refused or "" for m in device.messages(RuntimeOptionsReply)]
    reasons += [m.error.message for m in device.messages(CallFailed)]
    assert len(reasons) == 3
    assert all("paged attention wants an Engine" in why for why in reasons)
    assert device.reason(1) == FinishReason.STOP


# failures


def test_failed_run_fails_its_own_requests_only(library: OgEngineRunner, generator: OgGeneratorRunner) -> None:
    batch, alone = Driven(library), Driven(generator)
    good, bad = prompt("Count from 1 to 30."), [10**6]
    batch.open(1, bad, MAX_LENGTH)
    batch.open(2, good, MAX_LENGTH)
    lost, other = batch.advance([1, 2], [0, 0])
    assert "engine execution failure" in lost.failure
    assert other.failure
    batch.close(1)
    batch.close(2)
    batch.open(3, good, MAX_LENGTH)
    alone.open(3, good, MAX_LENGTH)
    assert batch.advance([3], good[-1:])[0].chosen() == alone.prefill(3, good).argmax()
    batch.close(3)
    alone.close(3)


# what only a GPU's pages would show, with a fake library


def fake(fields: dict[str, Any] | None = None, **search: Any) -> tuple[FakeLibrary, OgEngineRunner]:
    library = FakeLibrary(**(fields or {}))
    return library, OgEngineRunner(fake_generator(library, **search), 16)


def drive(batch: OgEngineRunner, arrivals: list[int], passes: int) -> tuple[list[Sequence], list[str]]:
    """Sequences that arrive before these passes, and the reasons of failures."""
    pair = RunnerPair(LoadedModel(batch._generator, batch))
    scheduler = Scheduler(batch, max_running=batch.abilities.max_rows, max_waiting=99, prefill_chunk=32)
    found: list[Sequence] = []
    failures: list[str] = []
    for number in range(passes):
        for _ in range(arrivals.count(number)):
            request = GenerationRequest("r", [7] * 8, 400, 900)
            found.append(Sequence(len(found), (0, len(found)), request, lambda: 0.0))
            scheduler.add(found[-1])
        for sequence in scheduler.admit():
            pair.open(sequence)
        step = scheduler.next_step()
        if step is None:
            continue
        for sequence, scores in zip(step.sequences, pair.forward(step), strict=True):
            if scores.failure:
                failures.append(scores.failure)
                scheduler.remove(sequence)
                pair.close(sequence)
            elif not scores.is_pending:
                choose_next_token(sequence, scores, [EOS])
    return found, failures


def test_all_that_come_together_are_read_and_answered_together() -> None:
    library, batch = fake()
    found, _ = drive(batch, [0] * 5, 10)
    assert library.rows == [5] * 10
    assert [sequence.num_produced for sequence in found] == [10] * 5


def test_later_request_joins_and_no_token_is_held_back() -> None:
    library, batch = fake({"chunk": 4})
    found, _ = drive(batch, [0, 5, 5, 9], 30)
    assert max(library.rows) == 4
    assert all(not turn.tokens for turn in batch._turns.values())
    assert found[0].num_produced > found[1].num_produced == found[2].num_produced > found[3].num_produced > 15


def test_turn_without_memory_waits_and_delays_no_other() -> None:
    library, batch = fake({"memory_for": 2})
    found, failures = drive(batch, [0, 0, 0], 200)
    assert [sequence.num_produced for sequence in found] == [200, 200, 0]
    assert not failures


def test_youngest_turn_is_evicted_when_none_can_continue() -> None:
    library, batch = fake({"memory_for": 0})
    found, failures = drive(batch, [0, 0], 250)
    assert ["memory" in failure for failure in failures] == [True, True]
    assert not library.rows[-1]


def test_prompt_tokens_count_as_progress_but_not_as_step_time() -> None:
    _, batch = fake({"chunk": 3})
    pair = RunnerPair(LoadedModel(batch._generator, batch))
    sequence = Sequence(1, (0, 1), GenerationRequest("r", [7] * 8, 9, 90), lambda: 0.0)
    pair.open(sequence)
    step = Step([Read.next(sequence)])
    assert (sequence.is_decoding, sequence.num_unread, sequence.num_cached) == (True, 1, 0)
    assert (step.reads_more, step.max_tokens) == (True, 9)
    for is_pending in (True, True, False):
        (scores,) = pair.forward(step)
        assert scores.is_pending is is_pending
    choose_next_token(sequence, scores, [EOS])
    assert (step.reads_more, step.max_tokens) == (False, 1)


def test_the_context_is_what_the_pages_hold_of_one() -> None:
    _, batch = fake({"max_length": 300})
    assert LoadedModel(batch._generator, batch).main.model.context_length == 300


def test_unsupported_default_is_ignored() -> None:
    _, batch = fake(min_p=0.1, temperature=0.7)
    assert batch.model.defaults == Sampling(temperature=0.7)


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(), {"do_sample": False}),
        (Sampling(1e-50, top_k=3), {"do_sample": False}),
        (Sampling(1.0, top_k=1), {"do_sample": False}),
        (Sampling(0.5, top_k=9, top_p=0.5, seed=4), {"temperature": 0.5, "top_k": 9, "top_p": 0.5, "seed": 4}),
        (Sampling(1.0, top_k=10**6), {"top_k": 0, "top_p": 1.0}),
    ],
)
def test_sampling_options_of_the_library_are_consistent(sampling: Sampling, expected: dict[str, Any]) -> None:
    _, batch = fake()
    batch.check(request := GenerationRequest("r", [1, 2], 5, 7, sampling, min_tokens=9))
    batch.open(Sequence(1, (0, 1), request, lambda: 0.0))
    given = batch._turns[1].request.options
    assert given | expected == given
    assert (given["max_generated_tokens"], given["min_generated_tokens"]) == (5, 5)
    assert ("temperature" in given) == (expected.get("do_sample") is not False)


def test_failed_engine_is_freed_before_the_new_one_is_made() -> None:
    library, batch = fake()
    driven = Driven(batch)
    driven.open(1, [1, 2], 7)
    library.num_failing = 1
    assert driven.advance([1], [2])[0].failure
    driven.close(1)
    driven.open(2, [1, 2], 7)
    assert driven.advance([2], [2])[0].chosen() == 1
    assert library.max_alive == 1


def test_an_engine_that_cannot_be_replaced_ends_the_process() -> None:
    library, batch = fake()
    driven = Driven(batch)
    driven.open(1, [1, 2], 7)
    library.num_failing, library.cannot_start = 1, True
    with pytest.raises(SystemExit, match="out of memory"):
        driven.advance([1], [2])


def test_engine_that_fails_every_request_ends_the_loop(tmp_path: Path) -> None:
    library, batch = fake()
    scheduler = Scheduler(batch, max_running=4, max_waiting=4, prefill_chunk=32)
    stepped = SteppedLoop(LoadedModel(batch._generator, batch), scheduler, bytes_guidance(batch.model), tmp_path)

    def answer(key: int) -> None:
        stepped.put_request(key, [7] * 8, max_tokens=3, max_length=20)
        stepped.run(key)

    library.num_failing = 3
    for key in range(3):
        answer(key)
        assert stepped.failure(key).code == "runner_failed"
    answer(3)
    assert stepped.tokens(3) == [1, 2, 3]
    library.num_failing = 4
    answer(4)
    answer(5)
    with pytest.raises(RunnerFailed, match="engine execution failure"):
        answer(6)


def test_request_that_cannot_be_closed_affects_no_other(caplog: pytest.LogCaptureFixture) -> None:
    _, batch = fake()
    Driven(batch).open(1, [1, 2], 7)

    def broken(number: int) -> bool:
        raise RuntimeError("no such turn")

    batch._turns[1].request.cancel_turn = broken
    batch.close(1)
    assert "could not be closed" in caplog.text


# the background


def test_answer_of_the_background_leaves_the_batch_and_continues(device: DemoDevice, alone: DemoDevice) -> None:
    text = "Count from 1 to 12."
    device.submit(1, text, background=True)
    device.run_to(1, 6)
    (sequence,) = device.scheduler.running
    device.submit(2, "Hello!")
    device.run(2)
    assert len(device.tokens(1)) == 6
    device.run(1)
    assert sequence.num_pauses == 1
    assert device.tokens(1) == alone.answer(1, text)
    assert device.reason(1) == FinishReason.STOP


@pytest.mark.parametrize(
    ("fields", "continues"),
    [
        ({}, True),
        ({"sampling": Sampling(0.0, seed=1)}, True),
        ({"sampling": Sampling(0.5)}, True),
        ({"sampling": Sampling(0.5, seed=1)}, False),
        ({"grammar": CITY}, False),
    ],
)
def test_answer_that_would_not_continue_alike_is_not_paused(
    library: OgEngineRunner, fields: dict[str, Any], continues: bool
) -> None:
    sequence = Sequence(0, (0, 0), GenerationRequest("r", [1], 5, 9, **fields), lambda: 0.0)
    assert library.may_pause(sequence)
    sequence.append(5)
    assert library.may_pause(sequence) is continues
