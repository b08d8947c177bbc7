"""Runners of a model directory, and greedy answers."""

import threading
from collections import abc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from _models.driven import Driven
from numpy.typing import NDArray

from genai_server.engine.graph_description import DecoderGraph
from genai_server.engine.model.files import check_model_directory
from genai_server.engine.model.graph_reader import read_decoder_graph
from genai_server.engine.model.session import open_session
from genai_server.engine.profiling.profile_files import wait_for_next_file_name
from genai_server.engine.runners.base import Runner, run_pass
from genai_server.engine.runners.batched import BatchedRunner
from genai_server.engine.runners.sequence_limits import BatchLimits
from genai_server.engine.scheduling.scheduler_output import ScheduledChunk
from genai_server.engine.sequence import Sequence
from tests.running_server import DEMO


def batched_runner(
    model_dir: Path = DEMO,
    *,
    graph: DecoderGraph | None = None,
    session: Any = None,
    num_slots: int = 4,
    max_length: int = 512,
    **how: Any,
) -> BatchedRunner:
    """A batch of a model, in a new session with one thread unless one is given."""
    graph = graph or read_decoder_graph(model_dir).in_32_bits()
    session = session or open_session(graph, 1)
    return BatchedRunner(graph, session, check_model_directory(model_dir), BatchLimits(num_slots, max_length), **how)


def greedy_logits(runner: Runner | Driven, prompt: list[int], steps: int) -> NDArray[np.float32]:
    """The logits [steps, vocab_size] of a greedy answer, whose tokens are read one by one."""
    on = runner if isinstance(runner, Driven) else Driven(runner)
    length = max(64, len(prompt) + steps)  # a window must fit
    on.open(99, prompt, length)
    found = [on.prefill(99, prompt).copy()]
    while len(found) < steps:
        found.append(on.decode([99], [int(found[-1].argmax())])[0].copy())
    on.close(99)
    return np.stack(found)


def greedy(runner: Runner | Driven, prompt: list[int], steps: int) -> list[int]:
    """The tokens of a greedy answer."""
    found: list[int] = greedy_logits(runner, prompt, steps).argmax(axis=-1).tolist()
    return found


@contextmanager
def interrupts(runner: Runner | Driven, seconds: float = 0.001) -> Iterator[None]:
    """A thread interrupts repeatedly, with so many seconds between."""
    stop = threading.Event()

    def interrupt() -> None:
        while not stop.wait(seconds):
            runner.interrupt()

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        runner.cancel_interrupt()  # the last interrupt may have come after the pass


Arrays = dict[str, NDArray[Any]]

# Tokens whose logits differ by less are a tie: the library's kernels round far enough to choose the other one.
TIE = 0.2


def library_answer(
    model_dir: Path, prompt: list[int], steps: int, adapter: Path | None = None, *, tie: float = 0.0
) -> list[int]:
    """The tokens of the library's greedy loop, as in its documentation.

    It ends with the answer, or before the first token whose logit is not larger by more than `tie` than the next one.
    """
    import onnxruntime_genai as og

    model = og.Model(str(model_dir))
    parameters = og.GeneratorParams(model)
    parameters.set_search_options(max_length=len(prompt) + steps, do_sample=False)
    generator = og.Generator(model, parameters)
    adapters = og.Adapters(model)
    if adapter is not None:
        adapters.load(str(adapter), "any")
        generator.set_active_adapter(adapters, "any")
    generator.append_tokens(np.array(prompt, np.int32))
    while not generator.is_done():
        second, first = np.partition(
            generator.get_logits().reshape(-1)[-check_model_directory(model_dir).vocab_size :], -2
        )[-2:]
        if first - second <= tie:
            break
        generator.generate_next_token()
    return [int(token) for token in generator.get_sequence(0)[len(prompt) :]]


def answer_with_inputs(
    model: Any,
    prompt: list[int],
    tensors: Arrays,
    *,
    steps: int,
    max_length: int,
    excluded: int | None = None,
    tie: float = 0.0,
) -> list[int]:
    """The tokens of the library's greedy answer to a prompt with the tensors of images or sounds, whatever they are.

    It ends before the first token whose logit is larger by less than `tie` than the next one. One token may be
    excluded, because the library fails once it has chosen one for images.
    """
    import onnxruntime_genai as og

    parameters = og.GeneratorParams(model)
    parameters.set_search_options(max_length=max_length, do_sample=False, batch_size=1)
    generator = og.Generator(model, parameters)
    if tensors:
        inputs = og.NamedTensors()
        for name, array in (tensors | {"input_ids": np.array([prompt], np.int32)}).items():
            inputs[name] = array
        generator.set_inputs(inputs)
    else:
        generator.append_tokens(np.array(prompt, np.int32))
    answer: list[int] = []
    while len(answer) < steps:
        logits = np.array(generator.get_logits())
        logits = logits.reshape(-1, logits.shape[-1])[-1].copy()
        if excluded is not None:
            logits[excluded] = -np.inf
        second, first = np.partition(logits, -2)[-2:]
        if first - second < tie:
            break
        answer.append(int(logits.argmax()))
        generator.append_tokens(np.array(answer[-1:], np.int32))
    return answer


def answers(runner: Runner, sequences: abc.Sequence[Sequence], steps: int, chunk: int) -> list[list[int]]:
    """Greedy answers of `steps` tokens. Each pass reads up to `chunk` tokens of every incomplete one."""
    logits_of_answers(runner, sequences, steps, chunk)
    return [sequence.tokens[len(sequence.prompt) :] for sequence in sequences]


def logits_of_answers(
    runner: Runner, sequences: abc.Sequence[Sequence], steps: int, chunk: int
) -> list[NDArray[np.float32]]:
    """The logits [steps, vocab_size] of greedy answers, which are read as `answers` says."""
    found: list[list[NDArray[np.float32]]] = [[] for _ in sequences]
    for sequence in sequences:
        sequence.batched = True
        sequence.num_read = sequence.num_cached = runner.open(sequence)
    while running := [sequence for sequence in sequences if sequence.num_produced < steps]:
        chunks = [
            ScheduledChunk.next(
                sequence, 1 if sequence.is_decoding else runner.fit_chunk(sequence, min(chunk, sequence.num_unread))
            )
            for sequence in running
        ]
        for read, scores in zip(chunks, run_pass(runner, chunks), strict=True):
            if not read.sequence.num_unread:
                found[sequences.index(read.sequence)].append(scores.last.copy())
                read.sequence.append(int(scores.last.argmax()))
    for sequence in sequences:
        runner.close(sequence.id)
    return [np.stack(logits) for logits in found]


def logits_in_any_company(
    batch: BatchedRunner, sequences: abc.Callable[[], list[Sequence]], steps: int
) -> list[NDArray[np.float32]]:
    """The logits of greedy answers, of which it checks that they have the same bits in any chunks and alone."""
    batch.forget()
    together = logits_of_answers(batch, sequences(), steps, 1000)
    for chunk in (7, 1):
        batch.forget()
        assert all(map(np.array_equal, logits_of_answers(batch, sequences(), steps, chunk), together))
    for number, expected in enumerate(together):
        batch.forget()
        (alone,) = logits_of_answers(batch, [sequences()[number]], steps, 1000)
        assert np.array_equal(alone, expected)
    return together


def generator_answer(generator: Runner, sequence: Sequence, steps: int) -> list[int]:
    """A greedy answer whose prompt is read in one pass."""
    generator.open(sequence)
    while sequence.num_produced < steps:
        (scores,) = run_pass(generator, [ScheduledChunk.next(sequence, sequence.num_unread)])
        sequence.append(int(scores.last.argmax()))
    generator.close(sequence.id)
    return sequence.tokens[len(sequence.prompt) :]


def profiled_answer(
    batch: BatchedRunner, sequence: Sequence, steps: int, folder: Path, *, first: int = 4, last: int = 8
) -> list[int]:
    """A greedy answer whose passes are profiled from the `first` token until it has `last` of them.

    Each of them has a file, and no other pass has one.
    """
    sequence.batched, name = True, sequence.request.request_id
    sequence.num_read = sequence.num_cached = batch.open(sequence)
    num_profiled = 0
    while sequence.num_produced < steps:
        is_profiled = first <= sequence.num_produced < last
        batch.set_runtime_option(sequence.id, "enable_profiling", str(folder / f"{name}-") if is_profiled else "0")
        unread = 1 if sequence.is_decoding else batch.fit_chunk(sequence, sequence.max_length)
        (scores,) = run_pass(batch, [ScheduledChunk.next(sequence, unread)])
        wait_for_next_file_name()
        num_profiled += is_profiled
        assert len(list(folder.glob(f"{name}-_*.json"))) == num_profiled
        if not sequence.num_unread:
            sequence.append(int(scores.last.argmax()))
    batch.close(sequence.id)
    assert num_profiled >= last - first
    return sequence.tokens[len(sequence.prompt) :]
