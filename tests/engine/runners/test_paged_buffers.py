"""A batch on a device's blocks of keys and values, with memory of the CPU and PagedAttention by other operators.

The tests on CUDA are skipped if ONNX Runtime was built without it or no GPU is available.
"""

from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

from genai_server.engine.model.graph import DecoderGraph, read_decoder_graph
from genai_server.engine.model.output_head import NUM_BEST
from genai_server.engine.model.paged_attention import BLOCK_TOKENS
from genai_server.engine.model.session import open_session
from genai_server.engine.runners.batched import BatchedRunner
from genai_server.engine.runners.buffers import buffers_on
from genai_server.engine.runners.cpu_buffers import CpuBuffers
from genai_server.engine.runners.layout import Row
from genai_server.engine.runners.og_generator import OgGeneratorRunner
from genai_server.engine.runners.paged_buffers import PagedBuffers, Place
from genai_server.engine.runners.runner_pair import RunnerPair
from genai_server.engine.runners.scores import Logits
from genai_server.engine.sampling.continuation import choose_next_token
from genai_server.engine.sampling.sampler import top_tokens
from genai_server.engine.scheduling.scheduler import Scheduler
from genai_server.engine.sequence import Sequence as EngineSequence
from genai_server.errors import InvalidField, RunnerFailed
from genai_server.messages.generation_request import GenerationRequest, Sampling
from genai_server.options.check import check_device, on_providers
from genai_server.options.device import DEFAULT_OPTIONS
from scripts._models.driven import Driven
from tests.engine.model_runners import batched_runner
from tests.engine.paged_operator import open_expanded
from tests.running_server import DEMO

ON_CPU = Place("cpu", 0, "CPUExecutionProvider")
ROWS, LENGTH, BLOCK = 3, 40, 16


def has_cuda() -> bool:
    try:
        onnxruntime.OrtValue.ortvalue_from_shape_and_type([1], np.float32, "cuda", 0)
    except Exception:  # ONNX Runtime's exceptions have no common base
        return False
    return True


on_cuda = pytest.mark.skipif(not has_cuda(), reason="no memory of a CUDA device can be had: nothing on CUDA is checked")


@pytest.fixture(scope="module")
def graph() -> DecoderGraph:
    return replace(read_decoder_graph(DEMO), block_tokens=BLOCK)


@pytest.fixture(scope="module")
def paged(graph: DecoderGraph) -> Any:
    return open_expanded(graph)


@pytest.fixture(scope="module")
def offering(graph: DecoderGraph) -> Any:
    return open_expanded(graph, offers_best=True)


def on_blocks(session: Any, graph: DecoderGraph, model_dir: Path = DEMO) -> BatchedRunner:
    """A batch on a device without hardware: the memory is the CPU's."""
    make = partial(PagedBuffers, ON_CPU, 1000)
    return batched_runner(model_dir, graph=graph, session=session, max_length=128, make_buffers=make)


BUILT = Path(__file__).parents[2] / "built_models"


def answers(batch: BatchedRunner) -> tuple[list[list[int]], NDArray[Any]]:
    """Tokens of sequences that come, go and reuse each other's past, and the final logits."""
    runner = Driven(batch)
    chance = np.random.default_rng(7)
    prompts = [
        [int(token) for token in chance.integers(10, batch.model.vocab_size - 150, length)]
        for length in (40, 7, 25, 3, 60)
    ]
    prompts.append([*prompts[0], 11, 12, 13])
    found: list[list[int]] = []

    def begin(number: int) -> int:
        cached = runner.open(number, prompts[number], 128)
        found.append([int(runner.prefill(number, prompts[number][cached:]).argmax())])
        return cached

    def step(*numbers: int) -> NDArray[Any]:
        logits = runner.decode(numbers, [found[number][-1] for number in numbers])
        for number, row in zip(numbers, logits, strict=True):
            found[number].append(int(row.argmax()))
        return logits.copy()

    for number in range(4):
        begin(number)
    for _ in range(5):
        step(0, 1, 2, 3)
    runner.close(1)
    begin(4)
    for _ in range(3):
        step(0, 2, 3, 4)
    runner.close(3)
    assert begin(5) == len(prompts[0])  # its beginning is copied from a slot in use
    runner.close(0)
    return found, np.concatenate([step(2, 4, 5) for _ in range(4)])


# Its attention has no bias, rotates keys or not, and takes three matrices or one. All is in 32 bits.
@pytest.mark.parametrize("name", ["mistral-3-images", "qwen-3-vl-images"])
def test_a_batch_on_blocks_answers_as_on_slots(name: str) -> None:
    model_dir = BUILT / name
    graph = replace(read_decoder_graph(model_dir), block_tokens=BLOCK)
    expected, expected_logits = answers(batched_runner(model_dir, max_length=128))
    found, logits = answers(on_blocks(open_expanded(graph), graph, model_dir=model_dir))
    assert found == expected
    np.testing.assert_allclose(logits, expected_logits, atol=1e-4)


def test_blocks_are_taken_as_tokens_come_and_given_back(graph: DecoderGraph) -> None:
    buffers = PagedBuffers(ON_CPU, 5, graph, ROWS, LENGTH)

    def table(*rows: tuple[int, int]) -> list[list[int]]:
        (found,) = buffers.inputs([Row(slot, length - 1, [7]) for slot, length in rows]).values()
        return [list(map(int, row)) for row in found]

    assert table((0, 1), (1, 33)) == [[4, 0, 0], [3, 2, 1]]
    assert table((0, 17)) == [[4, 0]]  # the last one
    buffers.give_back(1, 16)
    assert table((2, 32)) == [[1, 2]]
    assert table((1, 16)) == [[3]]
    assert len({block for row in table((0, 17), (1, 16), (2, 32)) for block in row}) == 5


def test_an_exact_request_is_refused(paged: Any, graph: DecoderGraph) -> None:
    request = GenerationRequest("r", [11], 4, 128, sampling=Sampling(), exact=True)
    with pytest.raises(InvalidField, match="exact is not supported on this device"):
        on_blocks(paged, graph).check(request)


# the best tokens


def all_logits(runner: Driven, numbers: list[int], tokens: list[int]) -> Logits:
    """The logits of a pass whose sequences need all of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("genai_server.engine.runners.batched.num_choices", lambda _: 0)
        return runner.decode(numbers, tokens)


def test_the_best_are_those_of_all_in_any_order_of_passes(paged: Any, offering: Any, graph: DecoderGraph) -> None:
    plain, runner = Driven(on_blocks(paged, graph)), Driven(on_blocks(offering, graph))
    tokens = [5, 6, 7]
    for number in range(3):
        for one in (plain, runner):
            one.open(number, [10 + number, 20], 128, top_logprobs=None)
            one.prefill(number, [10 + number, 20])
    for step in range(9):
        numbers = [0, 1, 2] if step % 2 else [0, 2]
        reading = [tokens[number] for number in numbers]
        whole = plain.decode(numbers, reading)
        if step % 3 == 1:
            assert np.array_equal(all_logits(runner, numbers, reading), whole)
        else:
            for scores, row in zip(runner.advance(numbers, reading), whole, strict=True):
                assert scores.tokens is not None
                assert np.array_equal(scores.tokens, top_tokens(row, NUM_BEST))
                assert np.array_equal(scores.last, row[scores.tokens])
        for number, row in zip(numbers, whole, strict=True):
            tokens[number] = int(row.argmax())


GREEDY = Sampling()
WANTED: list[dict[str, Any]] = [
    {"sampling": GREEDY},
    {"sampling": Sampling(0.9, top_k=20, top_p=0.9, seed=1)},
    {"sampling": Sampling(1.3, top_k=NUM_BEST, min_p=0.01, seed=2)},
    {"sampling": Sampling(1.0, seed=3)},
    {"sampling": Sampling(0.8, top_k=NUM_BEST + 1, seed=4)},
    {"sampling": Sampling(0.0, frequency_penalty=1.0)},
    {"sampling": Sampling(0.0, logit_bias={40: 3.0})},
    {"sampling": GREEDY, "top_logprobs": 2},
    {"sampling": GREEDY, "min_tokens": 5},
]


@cache
def generators() -> OgGeneratorRunner:
    """The generator is shared, because loading the library's model takes longer than answering."""
    return OgGeneratorRunner(DEMO, "cpu", 1)


def sample(session: Any, graph: DecoderGraph, wanted: list[dict[str, Any]]) -> tuple[list[list[int]], int]:
    """The answers to one prompt with each of these parameters, run concurrently, and the number of passes in which only
    the best tokens left the device.
    """
    runner, generator = on_blocks(session, graph), generators()
    num_best_only = 0
    pair = RunnerPair(generator, runner)
    scheduler = Scheduler(runner, max_running=4, max_waiting=9, prefill_chunk=32)
    running = [
        EngineSequence(number, (0, number), GenerationRequest("r", [11, 12, 13], 12, 128, **how), lambda: 0.0)
        for number, how in enumerate(wanted)
    ]
    for sequence in running:
        scheduler.add(sequence)
    for sequence in scheduler.admit():
        sequence.reuses_past = pair.reuses_past(sequence.request)
        pair.open(sequence)
    while running[0].num_left and (step := scheduler.next_step()) is not None:
        found = pair.forward(step)
        num_best_only += all(scores.tokens is not None for scores in found)
        for sequence, scores in zip(step.sequences, found, strict=True):
            if sequence.num_unread == 0:
                choose_next_token(sequence, scores, ())
    for sequence in running:
        pair.close(sequence)
    return [sequence.tokens for sequence in running], num_best_only


@pytest.mark.parametrize("how", WANTED, ids=str)
def test_token_chosen_from_the_best_equals_one_from_all(
    paged: Any, offering: Any, graph: DecoderGraph, how: dict[str, Any]
) -> None:
    (expected, never), (found, best_only) = (sample(one, graph, [how]) for one in (paged, offering))
    assert found == expected
    assert never == 0
    assert best_only == (12 if WANTED.index(how) < 3 else 7 if "min_tokens" in how else 0)


def test_one_row_that_needs_all_logits_gets_them_for_the_pass(paged: Any, offering: Any, graph: DecoderGraph) -> None:
    both = [WANTED[1], WANTED[3]]
    expected, _ = sample(paged, graph, both)
    assert sample(offering, graph, both) == (expected, 0)
    assert sample(offering, graph, WANTED[:2])[1] > 1


# what ONNX Runtime provides


def test_memory_of_a_device_is_allocated_once_after_the_trial(paged: Any, graph: DecoderGraph) -> None:
    made: list[tuple[int, int]] = []

    def make(graph: DecoderGraph, num_rows: int, max_length: int) -> PagedBuffers:
        made.append((num_rows, max_length))
        return PagedBuffers(ON_CPU, 1000, graph, num_rows, max_length)

    batched_runner(graph=graph, session=paged, max_length=128, make_buffers=make)
    assert made[1:] == [(4, 128)]


def test_failed_device_copy_is_a_runner_failure(graph: DecoderGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise RuntimeError("no memory")

    buffers = PagedBuffers(ON_CPU, 1000, graph, ROWS, LENGTH)
    buffers.inputs([Row(0, 3, [7])])
    monkeypatch.setattr(onnxruntime.InferenceSession, "run_with_iobinding", refuse)
    with pytest.raises(RunnerFailed, match="no memory"):
        buffers.copy(0, 1, 4)


def test_a_device_that_onnx_runtime_lacks_is_named(graph: DecoderGraph) -> None:
    if has_cuda():
        pytest.skip("there is a CUDA device")
    with pytest.raises(RuntimeError, match="(?i)cuda"):
        PagedBuffers(Place("cuda", 0, "CUDAExecutionProvider"), 1000, graph, ROWS, LENGTH)


@pytest.mark.parametrize(
    ("device", "sections", "number"),
    [
        ("cuda", {}, 0),
        ("cuda:1", {}, 1),
        ("cuda", {"provider": {"cuda": {"device_id": 2}}}, 2),
        ("tensorrt:3", {}, 3),
    ],
)
def test_buffers_are_on_the_providers_device_number(device: str, sections: dict[str, Any], number: int) -> None:
    made = buffers_on(device, check_device(sections, device), 9)
    assert isinstance(made, partial)
    assert (made.func, made.args) == (PagedBuffers, (Place("cuda", number, "CUDAExecutionProvider"), 9))


def test_the_cpus_buffers_are_its_own() -> None:
    assert buffers_on("cpu", DEFAULT_OPTIONS, 9) is CpuBuffers
    assert buffers_on("cpu:1", DEFAULT_OPTIONS, 9) is CpuBuffers


def on_cuda_blocks(graph: DecoderGraph, *, offers_best: bool) -> BatchedRunner:
    options = on_providers(DEFAULT_OPTIONS, "cuda")
    on_gpu = replace(graph, block_tokens=BLOCK_TOKENS, cache_type=np.float16)
    session = open_session(on_gpu, 1, optimized=False, offers_best=offers_best, options=options)
    return batched_runner(graph=on_gpu, session=session, max_length=512, make_buffers=buffers_on("cuda", options, 9))


@on_cuda
def test_the_best_on_cuda_are_those_of_all(graph: DecoderGraph) -> None:
    runner = Driven(on_cuda_blocks(graph, offers_best=True))
    found: list[list[int]] = []
    for best in (True, False):
        runner.open(2, [10, 11, 12], 128, reuse=False, top_logprobs=None if best else 0)
        runner.prefill(2, [10, 11])
        if best:
            (scores,) = runner.advance([2], [12])
            assert scores.tokens is not None
            found.append(scores.tokens.tolist())
        else:
            found.append(top_tokens(runner.decode([2], [12])[0], NUM_BEST).tolist())
        runner.close(2)
    assert found[0] == found[1]


@on_cuda
def test_batch_on_cuda_answers_as_on_the_cpu(graph: DecoderGraph, session: Any) -> None:
    expected, expected_logits = answers(batched_runner(session=session, max_length=128))
    found, logits = answers(on_cuda_blocks(graph, offers_best=False))
    assert np.abs(logits - expected_logits).max() < 0.1  # 16 bits
    assert found == expected
