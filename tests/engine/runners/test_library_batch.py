"""onnxruntime-genai's own batch on the demo model: on a CPU it is static, of at most four, so these go up to the border
behind which a GPU's paged attention would let requests come and go.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher

from genai_server.engine.guidance import Guidance, model_guidance
from genai_server.engine.runners.base import Interrupted, Opening
from genai_server.engine.runners.generator import GeneratorRunner
from genai_server.engine.runners.library_batch import LibraryBatch, Turn
from genai_server.engine.runners.pair import RunnerPair
from genai_server.engine.scheduler import Pass
from genai_server.engine.sequence import Sequence
from genai_server.engine.warm_up import scores_prompts, warm_up
from genai_server.errors import InvalidField, RunnerFailed
from genai_server.generation import FinishReason, GenerationRequest, Sampling
from genai_server.messages.generation import Cancel, Refused
from genai_server.messages.operator import OpenProfiles, Reply, SetRuntimeOption, StartProfile
from genai_server.profile_plan import ProfilePlan
from tests.demo_device import API, MAX_LENGTH, DemoDevice, prompt

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
def library(generator: GeneratorRunner) -> LibraryBatch:
    return LibraryBatch(generator, 16)


@pytest.fixture(scope="module")
def guidance(generator: GeneratorRunner) -> Guidance:
    return model_guidance(generator.model_dir, generator.model)


@pytest.fixture
def device(
    generator: GeneratorRunner, library: LibraryBatch, guidance: Guidance, tmp_path: Path
) -> Iterator[DemoDevice]:
    device = DemoDevice(RunnerPair(generator, library), guidance, tmp_path)
    yield device
    assert not library._turns
    assert not library._engine.has_pending_requests()
    assert generator._generators == {}


@pytest.fixture
def alone(generator: GeneratorRunner, guidance: Guidance, tmp_path: Path) -> DemoDevice:
    """The same model on Generators."""
    return DemoDevice(RunnerPair(generator), guidance, tmp_path)


def answer(device: DemoDevice, text: str, key: int = 1, **fields: Any) -> list[int]:
    device.submit(key, text, **fields)
    device.run(key)
    return device.tokens(key)


# answers


def test_its_rows_are_those_of_the_librarys_configuration(library: LibraryBatch, generator: GeneratorRunner) -> None:
    assert library.max_rows == ROWS
    assert LibraryBatch(generator, 2).max_rows == 2
    assert RunnerPair(generator, library).batching.scheduler == "library"


def test_answers_side_by_side_are_those_of_generators(device: DemoDevice, alone: DemoDevice) -> None:
    for key, text in enumerate(QUESTIONS):
        device.submit(key, text)
        alone.submit(key, text)
    device.run(*range(len(QUESTIONS)))
    alone.run(*range(len(QUESTIONS)))
    for key in range(len(QUESTIONS)):
        assert device.tokens(key) == alone.tokens(key)
        assert device.reason(key) == alone.reason(key) == FinishReason.STOP


def test_one_who_comes_later_waits_while_the_first_ones_stream(device: DemoDevice, alone: DemoDevice) -> None:
    device.submit(1, "Count from 1 to 30.", max_tokens=80)
    while len(device.tokens(1)) < 5:
        device.step()
    device.submit(2, "Hello!")
    seen = []
    while not device.tokens(2):
        device.step()
        seen.append(len(device.tokens(1)))
    device.run(1, 2)
    assert len(set(seen)) > 40  # token by token, not all at once
    assert device.tokens(1) == answer(alone, "Count from 1 to 30.", max_tokens=80)
    assert device.tokens(2) == answer(alone, "Hello!", 2)


def test_more_than_it_has_rows_all_end(device: DemoDevice) -> None:
    for key in range(6):
        device.submit(key, QUESTIONS[key % 4])
    device.run(*range(6))
    assert device.tokens(4) == device.tokens(0)
    assert device.tokens(5) == device.tokens(1)


def test_a_prompt_is_given_when_all_of_its_chunks_have_come(library: LibraryBatch) -> None:
    tokens = prompt("Hello!")
    library.open(1, tokens, Opening(MAX_LENGTH))
    library.prefill(1, tokens[:5])
    assert not library._turns[1].number
    first = library.prefill(1, tokens[5:])
    assert (first == 0).sum() == 1
    library.close(1)


def test_what_was_interrupted_is_taken_once(library: LibraryBatch) -> None:
    tokens = prompt("Count from 1 to 30.")
    library.open(1, tokens, Opening(MAX_LENGTH))
    token = int(library.prefill(1, tokens).argmax())
    library.open(2, tokens, Opening(MAX_LENGTH))
    for _ in range(3):
        with pytest.raises(Interrupted):
            library.prefill(2, tokens)
    assert library._turns[2].given == tokens
    library.close(1)
    assert int(library.prefill(2, tokens).argmax()) == token
    library.close(2)


# what a request asks for


def test_the_length_of_an_answer_is_the_requests(device: DemoDevice) -> None:
    assert len(answer(device, "Count from 1 to 30.", max_tokens=7)) == 7
    assert device.reason(1) == FinishReason.LENGTH
    assert len(answer(device, "Hello!", 2, max_tokens=40, ignore_eos=True)) == 40
    assert answer(device, "Hello!", 5, max_tokens=0) == []
    assert device.reason(5) == FinishReason.LENGTH
    least = len(answer(device, "Hello!", 3)) + 3
    assert len(answer(device, "Hello!", 4, min_tokens=least)) >= least


def test_sampling_is_the_librarys(device: DemoDevice, alone: DemoDevice) -> None:
    greedy = answer(alone, QUESTIONS[0])
    assert answer(device, QUESTIONS[0], sampling=Sampling(1.5, top_k=1)) == greedy
    assert answer(device, QUESTIONS[0], 2, sampling=Sampling(1.5, top_p=1e-6)) == greedy
    hot = {tuple(answer(device, QUESTIONS[0], 3 + n, sampling=Sampling(5.0), max_tokens=9)) for n in range(6)}
    assert len(hot) > 1
    repeated = Sampling(repetition_penalty=3.0)
    assert answer(device, QUESTIONS[1], 20, sampling=repeated) == answer(alone, QUESTIONS[1], 20, sampling=repeated)


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
    answer(device, "What is the capital of Italy?", grammar=grammar)
    assert device.text(1) in texts
    assert device.reason(1) == FinishReason.STOP


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"exact": True}, "exact"),
        ({"top_logprobs": 0}, "logprobs"),
        ({"prompt_logprobs": True}, "logprobs"),
        ({"sampling": Sampling(logit_bias={1: 2.0})}, "logit_bias"),
        ({"sampling": Sampling(frequency_penalty=0.1)}, "frequency_penalty"),
        ({"sampling": Sampling(presence_penalty=0.1)}, "presence_penalty"),
        ({"sampling": Sampling(1.0, min_p=0.1)}, "min_p"),
        ({"sampling": Sampling(1.0, seed=1)}, "seed"),
        ({"grammar": '{"grammars": [{"lark_grammar": "start: @b"}, {"name": "b", "json_schema": {}}]}'}, "grammar"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_it_lacks_is_refused_by_name_before_any_work(
    device: DemoDevice, fields: dict[str, Any], param: str
) -> None:
    device.submit(1, "Hello!", **fields)
    device.step()
    (refused,) = [m for m in device.sent if isinstance(m, Refused)]
    assert refused.param == param
    assert "onnxruntime-genai's own batch" in refused.message


def test_any_seed_is_one_of_the_librarys(library: LibraryBatch) -> None:
    request = library._engine.create_request()
    for seed in (-(2**63), -1, 2**63 - 1):  # which takes them only where it batches dynamically
        wanted = GenerationRequest("r", [1], 5, 9, Sampling(1.0, seed=seed))
        assert library._options(request, Opening(9, request=wanted), 5)
    request.close()


def test_what_has_no_effect_is_no_reason_to_refuse(library: LibraryBatch) -> None:
    library.check(GenerationRequest("r", [1], 5, 9, Sampling(0.0, seed=7, min_p=0.2)))


def test_a_longer_answer_than_its_pages_hold_is_refused(generator: GeneratorRunner) -> None:
    library = LibraryBatch(generator, 4)
    library._max_length = 8  # none of its own where it batches statically
    library.check(GenerationRequest("r", [1, 2, 3], 5, 100))
    with pytest.raises(InvalidField, match="8 tokens together .* not 9"):
        library.check(GenerationRequest("r", [1, 2, 3], 6, 100))


def test_no_prompt_is_scored(generator: GeneratorRunner, library: LibraryBatch) -> None:
    assert not scores_prompts(RunnerPair(generator, library), MAX_LENGTH)


# ends from outside


def test_who_leaves_frees_the_place_and_the_others_go_on(device: DemoDevice, alone: DemoDevice) -> None:
    device.submit(1, "Count from 1 to 30.", max_tokens=200, ignore_eos=True)
    device.submit(2, "Count from 1 to 12.")
    while len(device.tokens(1)) < 5:
        device.step()
    assert not device.tokens(2)
    device.inbox.put((API, Cancel(1)))
    device.run(2)
    assert device.tokens(2) == answer(alone, "Count from 1 to 12.", 2)
    assert len(device.tokens(1)) < 9


def test_terminate_session_ends_what_runs_and_recovers(device: DemoDevice) -> None:
    device.submit(1, "Count from 1 to 30.", ignore_eos=True, max_tokens=300)
    while len(device.tokens(1)) < 3:
        device.step()
    device.inbox.put((API, SetRuntimeOption(7, "terminate_session", "1")))
    device.run(1)
    assert device.reason(1) == FinishReason.TERMINATED
    device.submit(2, "Hello!")
    device.step()
    assert [m.code for m in device.sent if isinstance(m, Refused)] == ["session_terminated"]
    device.inbox.put((API, SetRuntimeOption(8, "terminate_session", "0")))
    assert answer(device, "Hello!", 3)


# profiles


def test_a_profiled_answer_goes_on_alone_and_stays_so(device: DemoDevice, alone: DemoDevice, tmp_path: Path) -> None:
    device.submit(1, "Count from 1 to 12.")
    while len(device.tokens(1)) < 4:
        device.step()
    device.inbox.put((API, SetRuntimeOption(7, "enable_profiling", "p", "r1")))
    while len(device.tokens(1)) < 8:
        device.step()
    device.inbox.put((API, SetRuntimeOption(8, "enable_profiling", "0", "r1")))
    device.run(1)
    assert len(list(tmp_path.glob("cpu/p_*.json"))) == 4
    assert device.tokens(1) == answer(alone, "Count from 1 to 12.")


def test_where_the_model_runs_in_the_batch_only_profiles_are_refused_with_the_librarys_reason(
    generator: GeneratorRunner, guidance: Guidance, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def cannot(*_: object) -> None:
        raise RunnerFailed("onnxruntime-genai: paged attention wants an Engine")

    monkeypatch.setattr(generator, "open", cannot)
    pair = RunnerPair(generator, LibraryBatch(generator, 4))
    warm_up(pair, 24, MAX_LENGTH)
    device = DemoDevice(pair, guidance, tmp_path)
    device.submit(1, "Count from 1 to 12.")
    while not device.tokens(1):
        device.step()
    device.inbox.put((API, SetRuntimeOption(7, "enable_profiling", "p")))
    device.inbox.put((API, SetRuntimeOption(8, "enable_profiling", "p", "r1")))
    device.inbox.put((API, StartProfile(9, ProfilePlan("p"))))
    device.run(1)
    told = [m.refused or "" for m in device.sent if isinstance(m, Reply)]
    told += [m.refusal.message for m in device.sent if isinstance(m, OpenProfiles) and m.refusal is not None]
    assert len(told) == 3
    assert all("paged attention wants an Engine" in why for why in told)
    assert device.reason(1) == FinishReason.STOP


# failures


def test_a_failed_run_fails_who_was_in_it_and_nobody_after(library: LibraryBatch) -> None:
    good, bad = prompt("Count from 1 to 30."), [10**6]
    library.open(1, bad, Opening(MAX_LENGTH))
    with pytest.raises(RunnerFailed, match="engine execution failure"):
        library.prefill(1, bad)
    library.close(1)
    library.open(2, good, Opening(MAX_LENGTH))
    token = int(library.prefill(2, good).argmax())
    assert library.decode([2], [token]).max() == 0
    library.close(2)


def test_in_a_pass_of_several_the_failure_of_one_is_its_own(library: LibraryBatch) -> None:
    tokens = prompt("Count from 1 to 30.")
    firsts = []
    for number in (1, 2):
        library.open(number, tokens, Opening(MAX_LENGTH))
    for number in (1, 2):
        try:
            firsts.append(int(library.prefill(number, tokens).argmax()))
        except Interrupted:
            library.close(1)
            firsts.append(int(library.prefill(number, tokens).argmax()))
            library.open(1, tokens, Opening(MAX_LENGTH))
    library._turns[1].failure = "request unserviceable"
    lost, found = library.advance([1, 2], firsts, ())
    assert lost.failure.endswith("request unserviceable")
    assert found.chosen is not None
    for number in (1, 2):
        library.close(number)


def test_one_whose_token_has_not_come_is_asked_again_and_the_other_goes_on(
    generator: GeneratorRunner, library: LibraryBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if its turn waited for memory, which only a GPU's pages can lack."""
    monkeypatch.setattr(library, "_run", lambda: None)
    pair = RunnerPair(generator, library)
    tokens = prompt("Hello!")
    going, waiting = (
        Sequence(number, (0, number), GenerationRequest("r", tokens, 20, MAX_LENGTH), lambda: 0.0) for number in (1, 2)
    )
    for sequence in (going, waiting):
        sequence.batched, sequence.num_read = True, len(tokens)
        sequence.append(7)
        library._turns[sequence.id] = Turn(Opening(MAX_LENGTH), tokens, number=1)
    library._turns[1].tokens.append(8)
    first, second = pair.forward(Pass([going, waiting], 1))
    assert (first.chosen, second.is_pending, second.chosen) == (8, True, None)
    assert (going.num_unread, waiting.num_unread) == (0, 1)
    library._turns[2].tokens.append(9)
    going.append(8)
    library._turns[1].has_ended = True
    first, second = pair.forward(Pass([going, waiting], 1))
    assert (first.chosen, second.chosen) == (generator.model.eos_token_ids[0], 9)
    assert (going.num_unread, waiting.num_unread) == (0, 0)
    library._turns.clear()
