"""Sequences that grow beyond the original context of a rope with short and long factors."""

from pathlib import Path
from typing import Any

import pytest

from genai_server.engine.runners.loaded_model import LoadedModel
from genai_server.engine.sampling.grammar import Guidance
from genai_server.engine.scheduling.scheduler import Scheduler
from genai_server.engine.scheduling.scheduler_output import StepPolicy
from genai_server.messages.admin import SetRuntimeOption
from genai_server.messages.engine_protocol import Tokens
from genai_server.messages.generation_request import TokenLogprob
from tests.engine.hybrids import BUILT, LENGTH, VOCAB, Hybrid, text
from tests.engine.model_runners import greedy
from tests.stepped_loop import SteppedLoop

pytestmark = pytest.mark.usefixtures("passes_of_any_length_take_the_same_time")
ORIGINAL_CONTEXT, STEPS = 128, 24


class Device(SteppedLoop):
    """A loop with a model of a long rope, and the library's own answers."""

    def __init__(self, model_dir: Path, folder: Path) -> None:
        model = Hybrid(model_dir)
        self.generator, self.batch = model.generator.runner, model.load().runner
        policy = StepPolicy(speculates=True)
        scheduler = Scheduler(self.batch, max_running=4, max_waiting=9, prefill_chunk=24, policy=policy)
        super().__init__(LoadedModel(self.batch, self.batch), scheduler, Guidance(None, VOCAB), folder)

    def submit(self, key: int, prompt: list[int], **fields: Any) -> None:
        asked = {"max_tokens": STEPS, "max_length": LENGTH, "ignore_eos": True, "top_logprobs": 1, "cache_prompt": True}
        self.put_request(key, prompt, **asked | fields)

    def expected(self, prompt: list[int]) -> list[int]:
        """The greedy answer if everything is read again as soon as there are more tokens than the original context."""
        num_short = min(STEPS, max(0, ORIGINAL_CONTEXT + 1 - len(prompt)))
        answer = greedy(self.generator, prompt, num_short) if num_short else []
        return answer + (greedy(self.generator, prompt + answer, STEPS - num_short) if num_short < STEPS else [])

    def logprobs(self, key: int) -> list[TokenLogprob]:
        return [logprob for message in self.messages(Tokens, key) for logprob in message.logprobs]


@pytest.fixture(params=["phi-3-128k", "phi-4-mini"])
def device(request: pytest.FixtureRequest, tmp_path: Path) -> Device:
    return Device(BUILT / request.param, tmp_path)


def test_a_sequence_that_becomes_long_is_read_again(device: Device) -> None:
    prompts = [text(length) for length in (20, 104, 105, 120, 128, 129, 200)]
    for key, prompt in enumerate(prompts):
        device.submit(key, prompt)
    device.run(*range(len(prompts)))
    assert [device.tokens(key) for key in range(len(prompts))] == [device.expected(prompt) for prompt in prompts]


def test_a_repetitive_answer_becomes_long_with_drafts(device: Device) -> None:
    prompt = text(10) * 12
    device.submit(0, prompt, prediction=device.expected(prompt) + [5] * 9)
    device.run(0)
    assert device.tokens(0) == device.expected(prompt)


def test_a_long_prompt_reuses_long_prefixes_only(device: Device) -> None:
    prompt = text(200)
    for key, length in enumerate((100, 200, 180, 110)):
        device.submit(key, prompt[:length], max_tokens=1)
        device.run(key)
    assert [device.end(key).num_cached for key in range(4)] == [0, 0, 178, 100]


def test_a_sequence_that_becomes_long_has_the_same_bits_alone_in_company_and_with_drafts(device: Device) -> None:
    assert not device.batch.abilities.why_not_exact
    prompt = text(120)
    device.submit(0, prompt, cache_prompt=False)
    device.run(0)
    for key in (1, 2, 3):
        device.submit(key, prompt if key == 2 else text(90 + 20 * key))
    device.run(1, 2, 3)
    device.submit(4, prompt, prediction=[*device.tokens(0)[:15], 5, *device.tokens(0)[16:]])
    device.run(4)
    assert device.end(4).num_accepted
    assert device.logprobs(0) == device.logprobs(2) == device.logprobs(4)


def test_a_generator_reads_a_long_prompt_in_one_pass(device: Device, tmp_path: Path) -> None:
    prompt, generator = text(200), device.generator
    scheduler = Scheduler(generator, max_running=4, max_waiting=9, prefill_chunk=24)
    alone = SteppedLoop(LoadedModel(generator), scheduler, Guidance(None, VOCAB), tmp_path)
    alone.put_request(0, prompt, max_tokens=STEPS, max_length=LENGTH, ignore_eos=True)
    alone.run(0)
    assert alone.tokens(0) == device.expected(prompt)


def test_a_profiled_sequence_that_becomes_long_stays_profiled(device: Device, tmp_path: Path) -> None:
    prompts = [text(length) for length in (120, 200)]
    device.put(SetRuntimeOption(1, "enable_profiling", "long"))
    for key, prompt in enumerate(prompts):
        device.submit(key, prompt)
        device.run(key)
        assert device.tokens(key) == device.expected(prompt)
        assert device.end(key).num_profiled == STEPS
    # Passes that read tokens again have no file.
    assert len(list(tmp_path.glob("cpu/long_*.json"))) == 2 * (STEPS - 1) + 5 + 9
