"""A batch on a device's blocks of keys and values, with memory of the CPU and PagedAttention by other operators.

The tests on CUDA are skipped if ONNX Runtime was built without it or no GPU is available.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

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
from tests.engine.hybrids import BUILT
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


@pytest.fixture
def plain(paged: Any, graph: DecoderGraph) -> Driven:
    """A batch that gives all logits."""
    return Driven(on_blocks(paged, graph))


@pytest.fixture
def runner(offering: Any, graph: DecoderGraph) -> Driven:
    """A batch that offers the best logits."""
    return Driven(on_blocks(offering, graph))


def begin(runner: Driven, number: int, prompt: list[int], **how: Any) -> Logits:
    cached = runner.open(number, prompt, 128, **how)
    return runner.prefill(number, prompt[cached:])


def answers(batch: BatchedRunner) -> tuple[list[list[int]], NDArray[Any]]:
    """Tokens of sequences that come, go and reuse each other's past, and the final logits."""
    runner, found = Driven(batch), list[list[int]]()
    chance, vocabulary = np.random.default_rng(7), batch.model.vocab_size - 150
    prompts: list[list[int]] = [chance.integers(10, vocabulary, length).tolist() for length in (40, 7, 25, 3, 60)]
    prompts.append([*prompts[0], 11, 12, 13])

    def step(*numbers: int) -> NDArray[Any]:
        logits = runner.decode(numbers, [found[number][-1] for number in numbers])
        for number, row in zip(numbers, logits, strict=True):
            found[number].append(int(row.argmax()))
        return logits.copy()

    for prompt in prompts[:4]:
        found.append([int(begin(runner, len(found), prompt).argmax())])
    for _ in range(5):
        step(0, 1, 2, 3)
    runner.close(1)
    found.append([int(begin(runner, 4, prompts[4]).argmax())])
    for _ in range(3):
        step(0, 2, 3, 4)
    runner.close(3)
    assert runner.open(5, prompts[5], 128) == len(prompts[0])  # its beginning is copied from a slot in use
    found.append([int(runner.prefill(5, prompts[5][-3:]).argmax())])
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


def test_an_exact_request_is_refused(plain: Driven) -> None:
    request = GenerationRequest("r", [11], 4, 128, sampling=Sampling(), exact=True)
    words = "exact is not supported with this model here: its kernels round differently"
    with pytest.raises(InvalidField, match=words):
        plain.check(request)


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


def test_the_best_are_those_of_all_in_any_order_of_passes(plain: Driven, runner: Driven, fetched: list[range]) -> None:
    tokens = [5, 6, 7]
    for number in range(3):
        for one in (plain, runner):
            begin(one, number, [10 + number, 20])
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
        assert fetched == []
        assert np.array_equal(found[-1].last, whole[-1])
        assert fetched == [range(len(numbers) - 1, len(numbers))]
        for number, row in zip(numbers, whole, strict=True):
            tokens[number] = int(row.argmax())


def test_logits_stay_readable_after_later_passes(plain: Driven, runner: Driven) -> None:
    for one in (plain, runner):
        one.open(1, [10, 20, 30], 128)
    expected = plain.prefill(1, [10, 20, 30], positions=True).copy()
    (found,) = runner.read((1, [10], False))
    for token in (20, 30):
        (later,) = runner.read((1, [token], True))
    runner.read((1, [40], True))
    np.testing.assert_allclose([found.last, later.last], expected[[0, 2]], atol=1e-4)


def test_logits_of_few_positions_are_computed_at_once(runner: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []
    bind = DecoderSession.bind

    def noted(session: DecoderSession, layout: Layout, wanted: Any) -> Any:
        computed.append(layout.num_logits)
        return bind(session, layout, wanted)

    monkeypatch.setattr(DecoderSession, "bind", noted)
    chunks = []
    for number, scored in enumerate((True, True, False)):
        runner.open(number, [10 + number, 20, 30, 40], 128, reuse=False)
        request = GenerationRequest("r", [5] * 600, 1, 700, prompt_logprobs=scored)
        sequence = EngineSequence(number, (0, number), request, lambda: 0.0)
        assert runner.fit_chunk(sequence, 2048) == (256 if scored else 600)
        chunks.append(ScheduledChunk(sequence, [10 + number, 20, 30, 40], positions=scored))
    assert [len(scores.logits) for scores in runner.forward(chunks)] == [4, 4, 1]
    assert sorted(computed) == [1, 4, 4]


@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_single_rows_are_read_as_32_bit_floats(graph: DecoderGraph, kind: Any) -> None:
    logits = np.random.default_rng(1).normal(size=(1, 5, 1001)).astype(kind)
    buffers = PagedBuffers(ON_CPU, 5, replace(graph, logits_type=kind), ROWS, LENGTH)
    found = buffers.read(onnxruntime.OrtValue.ortvalue_from_numpy(logits), range(2, 4))
    assert found.dtype == np.float32
    assert np.array_equal(found, logits[0, 2:4])


def test_each_row_has_the_share_at_its_own_temperature(runner: Driven) -> None:
    temperatures = [0.5, 0.0, 2.0]
    for number, temperature in enumerate(temperatures):
        begin(runner, number, [10, 20], sampling=Sampling(temperature))
    for scores, temperature in zip(runner.advance([0, 1, 2], [5, 6, 7]), temperatures, strict=True):
        assert scores.best is not None
        scaled = scores.last / (temperature or 1)
        np.testing.assert_allclose(scores.best.shares, [1 / np.exp(scaled - scaled.max()).sum()], rtol=1e-5)


@pytest.mark.parametrize("name", ["mistral-3-images", "qwen-3-vl-images"])
def test_image_token_is_never_among_the_best(name: str) -> None:
    graph = replace(read_decoder_graph(BUILT / name), block_tokens=BLOCK)
    assert graph.vision is not None
    runner = Driven(on_blocks(open_expanded(graph, offers_best=True), graph, BUILT / name))
    begin(runner, 0, [10, 20])
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


Compare = Callable[..., None]


@pytest.fixture
def compare(paged: Any, offering: Any, graph: DecoderGraph, fetched: list[range]) -> Compare:
    """Checks that answers with these parameters are the same from the best logits as from all.

    Tokens are the same, and log probabilities up to rounding.
    """

    def compared(*wanted: dict[str, Any]) -> None:
        expected = sample(paged, graph, list(wanted))
        assert not fetched
        for found, right in zip(sample(offering, graph, list(wanted)), expected, strict=True):
            assert [step.tokens for step in found] == [step.tokens for step in right]
            given, others = ([one for step in steps for one in step.logprobs] for steps in (found, right))
            for one, other in zip(given, others, strict=True):
                assert [token for token, _ in one.top] == [token for token, _ in other.top]
                values = [one.logprob, *(value for _, value in one.top)]
                assert values == pytest.approx([other.logprob, *(value for _, value in other.top)], abs=1e-5)

    return compared


@pytest.mark.parametrize(("how", "copied"), WANTED, ids=str)
def test_token_chosen_from_the_best_equals_one_from_all(
    compare: Compare, fetched: list[range], how: dict[str, Any], copied: range
) -> None:
    compare(how)
    assert len(fetched) in copied


def test_a_row_that_needs_all_logits_costs_others_none(compare: Compare, fetched: list[range]) -> None:
    compare(WANTED[1][0], WANTED[7][0])
    assert fetched == [range(1, 2)] * 12


# what ONNX Runtime provides


def test_failed_device_copy_is_a_runner_failure(graph: DecoderGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    buffers = PagedBuffers(ON_CPU, 1000, graph, ROWS, LENGTH)
    buffers.inputs([Row(0, 3, [7])])
    logits = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros((1, 1, 9), np.float32))
    monkeypatch.setattr(onnxruntime.InferenceSession, "run_with_iobinding", Mock(side_effect=RuntimeError("no memory")))
    for fail in (lambda: buffers.copy(0, 1, 4), lambda: buffers.read(logits, range(1))):
        with pytest.raises(RunnerFailed, match="no memory"):
            fail()


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
    assert buffers_on(f"cpu:{number}", DEFAULT_OPTIONS, 9) is CpuBuffers


def on_cuda_blocks(graph: DecoderGraph, model_dir: Path = DEMO, *, offers_best: bool = False) -> BatchedRunner:
    options = on_providers(DEFAULT_OPTIONS, "cuda")
    on_gpu = replace(graph, block_tokens=BLOCK_TOKENS, cache_type=np.float16)
    session = open_session(on_gpu, 1, offers_best=offers_best, options=options)
    return batched_runner(model_dir, graph=on_gpu, session=session, make_buffers=buffers_on("cuda", options, 9))


@on_cuda
def test_the_best_on_cuda_are_those_of_all(graph: DecoderGraph) -> None:
    runner = Driven(on_cuda_blocks(graph, offers_best=True))
    begin(runner, 2, [10, 11])
    (scores,) = runner.advance([2], [12])
    assert scores.best is not None
    runner.close(2)
    begin(runner, 2, [10, 11], reuse=False)
    expected = top_tokens(runner.decode([2], [12])[0], NUM_BEST)
    assert np.array_equal(scores.best.tokens[0], expected)


@on_cuda
def test_batch_on_cuda_answers_as_on_the_cpu() -> None:
    """Of a model in 32 bits: 8-bit activations, as the demo model has on a CPU, round differently anywhere."""
    model_dir, prompt = BUILT / "mistral-3-images", list(range(10, 300))
    graph = replace(read_decoder_graph(model_dir), block_tokens=BLOCK)
    on_cpu = on_blocks(open_expanded(graph), graph, model_dir=model_dir, max_length=512)
    expected, found = (greedy_logits(one, prompt, 1) for one in (on_cpu, on_cuda_blocks(graph, model_dir)))
    finite = np.isfinite(expected)
    assert np.array_equal(np.isfinite(found), finite)
    assert np.abs(found[finite] - expected[finite]).max() < 0.05 * expected[finite].std()


def test_session_without_memory_is_a_runtime_error(graph: DecoderGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failure(Exception):  # as ONNX Runtime's own are
        pass

    monkeypatch.setattr(onnxruntime, "InferenceSession", Mock(side_effect=Failure("CUDA failure 2: out of memory")))
    with pytest.raises(RuntimeError, match="out of memory"):
        PagedBuffers(ON_CPU, 1000, graph, ROWS, LENGTH)
