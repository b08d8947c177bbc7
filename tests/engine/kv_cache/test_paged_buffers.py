"""A batch on a device's blocks of keys and values, with memory of the CPU and PagedAttention by other operators.

The tests on CUDA are skipped if ONNX Runtime was built without it or no GPU is available.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from _models.driven import Driven
from numpy.typing import NDArray

from genai_server.engine.graph_description import DecoderGraph
from genai_server.engine.graph_rewriting.paged_attention import BLOCK_TOKENS
from genai_server.engine.kv_cache.buffers import CpuBuffers, buffers_on
from genai_server.engine.kv_cache.layout import Layout, Row
from genai_server.engine.kv_cache.paged_buffers import MemoryDevice, PagedBuffers
from genai_server.engine.model.graph_reader import read_decoder_graph
from genai_server.engine.model.session import open_session
from genai_server.engine.runners.batched import BatchedRunner, DecoderSession
from genai_server.engine.runners.loaded_model import LoadedModel, RunnerPair
from genai_server.engine.sampling.continuation import NextToken, choose_next_token
from genai_server.engine.sampling.sampler import top_tokens
from genai_server.engine.scheduling.scheduler import Scheduler
from genai_server.engine.scheduling.scheduler_output import ScheduledChunk
from genai_server.engine.scores import NUM_BEST, Logits
from genai_server.engine.sequence import Sequence as EngineSequence
from genai_server.errors import InvalidField, RunnerFailed
from genai_server.messages.generation_request import GenerationRequest, Sampling
from genai_server.options.device import DEFAULT_OPTIONS, check_device, on_providers
from tests.engine.model_runners import batched_runner, greedy_logits
from tests.engine.paged_operator import BLOCK, ON_CPU, on_blocks, open_expanded
from tests.running_server import DEMO

ROWS, LENGTH = 3, 40


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
    with pytest.raises(
        InvalidField, match="exact is not supported with this model here: its kernels round differently"
    ):
        on_blocks(paged, graph).check(request)


# the best tokens


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[range]:
    """The positions whose logits were copied from the device, by pass."""
    found: list[range] = []
    read = PagedBuffers.read

    def noted(buffers: PagedBuffers, kept: Any, rows: range) -> Logits:
        found.append(rows)
        return read(buffers, kept, rows)

    monkeypatch.setattr(PagedBuffers, "read", noted)
    return found


def test_the_best_are_those_of_all_in_any_order_of_passes(
    paged: Any, offering: Any, graph: DecoderGraph, fetched: list[range]
) -> None:
    plain, runner = Driven(on_blocks(paged, graph)), Driven(on_blocks(offering, graph))
    tokens = [5, 6, 7]
    for number in range(3):
        for one in (plain, runner):
            one.open(number, [10 + number, 20], 128)
            one.prefill(number, [10 + number, 20])
    for step in range(9):
        numbers = [0, 1, 2] if step % 2 else [0, 2]
        reading = [tokens[number] for number in numbers]
        whole = plain.decode(numbers, reading)
        fetched.clear()
        found = runner.advance(numbers, reading)
        for scores, row in zip(found, whole, strict=True):
            assert scores.best is not None
            assert np.array_equal(scores.best.tokens, [top_tokens(row, NUM_BEST)])
            assert np.array_equal(scores.best.logits, [row[scores.best.tokens[0]]])
            np.testing.assert_allclose(scores.best.shares, [1 / np.exp(row - row.max()).sum()], rtol=1e-5)
        assert fetched == []
        assert np.array_equal(found[-1].last, whole[-1])
        assert fetched == [range(len(numbers) - 1, len(numbers))]
        for number, row in zip(numbers, whole, strict=True):
            tokens[number] = int(row.argmax())


def test_logits_stay_readable_after_later_passes(paged: Any, offering: Any, graph: DecoderGraph) -> None:
    plain, runner = Driven(on_blocks(paged, graph)), Driven(on_blocks(offering, graph))
    for one in (plain, runner):
        one.open(1, [10, 20, 30], 128)
    expected = plain.prefill(1, [10, 20, 30], positions=True).copy()
    (found,) = runner.read((1, [10], False))
    for token in (20, 30):
        (later,) = runner.read((1, [token], True))
    runner.read((1, [40], True))
    np.testing.assert_allclose([found.last, later.last], expected[[0, 2]], atol=1e-4)


def test_logits_of_few_positions_are_computed_at_once(
    offering: Any, graph: DecoderGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[int] = []
    bind = DecoderSession.bind

    def noted(session: DecoderSession, layout: Layout, wanted: Any) -> Any:
        computed.append(layout.num_logits)
        return bind(session, layout, wanted)

    monkeypatch.setattr(DecoderSession, "bind", noted)
    runner = Driven(on_blocks(offering, graph))
    computed.clear()
    chunks = []
    for number, scored in enumerate((True, True, False)):
        runner.open(number, [10 + number, 20, 30, 40], 128, reuse=False)
        request = GenerationRequest("r", [5] * 600, 1, 700, prompt_logprobs=scored)
        sequence = EngineSequence(number, (0, number), request, lambda: 0.0)
        assert runner.fit_chunk(sequence, 2048) == (256 if scored else 600)
        chunks.append(ScheduledChunk(sequence, [10 + number, 20, 30, 40], positions=scored))
    found = runner.forward(chunks)
    assert [len(scores.logits) for scores in found] == [4, 4, 1]
    assert sorted(computed) == [1, 4, 4]


@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_single_rows_are_read_as_32_bit_floats(graph: DecoderGraph, kind: Any) -> None:
    logits = np.random.default_rng(1).normal(size=(1, 5, 1001)).astype(kind)
    buffers = PagedBuffers(ON_CPU, 5, replace(graph, logits_type=kind), ROWS, LENGTH)
    found = buffers.read(onnxruntime.OrtValue.ortvalue_from_numpy(logits), range(2, 4))
    assert found.dtype == np.float32
    assert np.array_equal(found, logits[0, 2:4])


def test_each_row_has_the_share_at_its_own_temperature(offering: Any, graph: DecoderGraph) -> None:
    runner = Driven(on_blocks(offering, graph))
    temperatures = {1: 0.5, 2: 0.0, 3: 2.0}
    for number, temperature in temperatures.items():
        runner.open(number, [10, 20], 128, sampling=Sampling(temperature))
        runner.prefill(number, [10, 20])
    for scores, temperature in zip(runner.advance([1, 2, 3], [5, 6, 7]), temperatures.values(), strict=True):
        assert scores.best is not None
        scaled = scores.last / (temperature or 1)
        np.testing.assert_allclose(scores.best.shares, [1 / np.exp(scaled - scaled.max()).sum()], rtol=1e-5)


@pytest.mark.parametrize("name", ["mistral-3-images", "qwen-3-vl-images"])
def test_image_token_is_never_among_the_best(name: str) -> None:
    graph = replace(read_decoder_graph(BUILT / name), block_tokens=BLOCK)
    assert graph.vision is not None
    runner = Driven(on_blocks(open_expanded(graph, offers_best=True), graph, BUILT / name))
    runner.open(0, [10, 20], 128)
    runner.prefill(0, [10, 20])
    for token in range(30, 40):
        (scores,) = runner.advance([0], [token])
        assert scores.best is not None
        assert np.array_equal(scores.best.tokens[0], top_tokens(scores.last, NUM_BEST))
        assert scores.last[graph.vision.image_token] == -np.inf


GREEDY = Sampling()
# Fields of a request, and of how many of the 12 tokens all logits leave the device.
WANTED: list[tuple[dict[str, Any], range]] = [
    ({"sampling": GREEDY}, range(1)),
    ({"sampling": Sampling(0.9, top_k=20, top_p=0.9, seed=1)}, range(1)),
    ({"sampling": Sampling(1.3, top_k=NUM_BEST, min_p=0.01, seed=2)}, range(1)),
    ({"sampling": Sampling(1.0, seed=3)}, range(3)),
    ({"sampling": Sampling(1.0, top_p=0.5, seed=3)}, range(1)),
    ({"sampling": Sampling(1.0, min_p=0.2, seed=3)}, range(1)),
    ({"sampling": Sampling(3.0, seed=3)}, range(6, 13)),
    ({"sampling": Sampling(0.8, top_k=NUM_BEST + 1, seed=4)}, range(12, 13)),
    ({"sampling": Sampling(0.0, frequency_penalty=1.0)}, range(1)),
    ({"sampling": Sampling(0.0, frequency_penalty=-1.0)}, range(12, 13)),
    ({"sampling": Sampling(0.7, top_k=20, presence_penalty=1.5, repetition_penalty=1.1, seed=6)}, range(1)),
    ({"sampling": Sampling(0.0, logit_bias={40: 3.0})}, range(12, 13)),
    ({"sampling": Sampling(0.0, logit_bias={40: -3.0, 41: -100.0})}, range(1)),
    ({"sampling": GREEDY, "top_logprobs": 20}, range(1)),
    ({"sampling": Sampling(1.0, seed=5), "top_logprobs": 2}, range(6)),
    ({"sampling": Sampling(0.7, seed=5), "top_logprobs": 2}, range(12, 13)),
    ({"sampling": GREEDY, "min_tokens": 5}, range(1)),
]


def sample(session: Any, graph: DecoderGraph, wanted: list[dict[str, Any]]) -> list[list[NextToken]]:
    """The answers to one prompt with each of these parameters, run concurrently."""
    runner = on_blocks(session, graph)
    pair = RunnerPair(LoadedModel(runner, runner))
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
    answers: list[list[NextToken]] = [[] for _ in wanted]
    while running[0].num_left and (step := scheduler.next_step()) is not None:
        found = pair.forward(step)
        for sequence, scores in zip(step.sequences, found, strict=True):
            if sequence.num_unread == 0:
                answers[sequence.id].append(choose_next_token(sequence, scores, ()))
    for sequence in running:
        pair.close(sequence)
    return answers


def assert_equal(found: list[list[NextToken]], expected: list[list[NextToken]]) -> None:
    """Tokens are the same, and log probabilities up to rounding."""
    for one, other in zip(found, expected, strict=True):
        assert [token for step in one for token in step.tokens] == [token for step in other for token in step.tokens]
        for step, wanted in zip(one, other, strict=True):
            for logprob, right in zip(step.logprobs, wanted.logprobs, strict=True):
                assert [token for token, _ in logprob.top] == [token for token, _ in right.top]
                values = [logprob.logprob, *(value for _, value in logprob.top)]
                assert values == pytest.approx([right.logprob, *(value for _, value in right.top)], abs=1e-5)


@pytest.mark.parametrize(("how", "copied"), WANTED, ids=str)
def test_token_chosen_from_the_best_equals_one_from_all(
    paged: Any, offering: Any, graph: DecoderGraph, fetched: list[range], how: dict[str, Any], copied: range
) -> None:
    expected = sample(paged, graph, [how])
    assert not fetched
    assert_equal(sample(offering, graph, [how]), expected)
    assert len(fetched) in copied


def test_a_row_that_needs_all_logits_costs_others_none(
    paged: Any, offering: Any, graph: DecoderGraph, fetched: list[range]
) -> None:
    both = [WANTED[1][0], WANTED[7][0]]
    expected = sample(paged, graph, both)
    assert_equal(sample(offering, graph, both), expected)
    assert fetched == [range(1, 2)] * 12


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
    with pytest.raises(RunnerFailed, match="no memory"):
        buffers.read(onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros((1, 1, 9), np.float32)), range(1))


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
    assert (made.func, made.args) == (PagedBuffers, (MemoryDevice("cuda", number, "CUDAExecutionProvider"), 9))


def test_the_cpus_buffers_are_its_own() -> None:
    assert buffers_on("cpu", DEFAULT_OPTIONS, 9) is CpuBuffers
    assert buffers_on("cpu:1", DEFAULT_OPTIONS, 9) is CpuBuffers


def on_cuda_blocks(graph: DecoderGraph, *, offers_best: bool) -> BatchedRunner:
    options = on_providers(DEFAULT_OPTIONS, "cuda")
    on_gpu = replace(graph, block_tokens=BLOCK_TOKENS, cache_type=np.float16)
    session = open_session(on_gpu, 1, offers_best=offers_best, options=options)
    return batched_runner(graph=on_gpu, session=session, max_length=512, make_buffers=buffers_on("cuda", options, 9))


@on_cuda
def test_the_best_on_cuda_are_those_of_all(graph: DecoderGraph) -> None:
    runner = Driven(on_cuda_blocks(graph, offers_best=True))
    found: list[list[int]] = []
    for best in (True, False):
        runner.open(2, [10, 11, 12], 128, reuse=False)
        runner.prefill(2, [10, 11])
        if best:
            (scores,) = runner.advance([2], [12])
            assert scores.best is not None
            found.append(scores.best.tokens[0].tolist())
        else:
            found.append(top_tokens(runner.decode([2], [12])[0], NUM_BEST).tolist())
        runner.close(2)
    assert found[0] == found[1]


@on_cuda
def test_batch_on_cuda_answers_as_on_the_cpu() -> None:
    """Of a model in 32 bits: 8-bit activations, as the demo model has on a CPU, round differently anywhere."""
    model_dir, prompt = BUILT / "mistral-3-images", list(range(10, 300))
    graph = replace(read_decoder_graph(model_dir), cache_type=np.float16, block_tokens=BLOCK_TOKENS)
    options = on_providers(DEFAULT_OPTIONS, "cuda")
    make = buffers_on("cuda", options, 9)
    session = open_session(graph, 1, options=options)
    on_gpu = batched_runner(model_dir, graph=graph, session=session, max_length=512, make_buffers=make)
    of_blocks = replace(graph, cache_type=np.float32, block_tokens=BLOCK)
    expected = greedy_logits(
        on_blocks(open_expanded(of_blocks), of_blocks, model_dir=model_dir, max_length=512), prompt, 1
    )
    found = greedy_logits(on_gpu, prompt, 1)
    finite = np.isfinite(expected)
    assert np.array_equal(np.isfinite(found), finite)
    assert np.abs(found[finite] - expected[finite]).max() < 0.05 * expected[finite].std()


def test_session_without_memory_is_a_runtime_error(graph: DecoderGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failure(Exception):  # as ONNX Runtime's own are
        pass

    def refuse(*args: object, **options: object) -> None:
        raise Failure("CUDA failure 2: out of memory")

    monkeypatch.setattr(onnxruntime, "InferenceSession", refuse)
    with pytest.raises(RuntimeError, match="out of memory"):
        PagedBuffers(ON_CPU, 1000, graph, ROWS, LENGTH)
