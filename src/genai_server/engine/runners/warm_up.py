"""Runs a model once in the shapes that requests will bring, before the engine says that it is ready.

The first pass of a shape takes memory from the system, binds buffers, and on some devices compiles kernels or captures
a graph: the first client would wait for it.
"""

import logging
import time
from itertools import count

from genai_server.engine.runners.base import Opening, Runner
from genai_server.engine.runners.runner_pair import RunnerPair
from genai_server.errors import RunnerFailed

log = logging.getLogger(__name__)
_DECODED = 2
_SHORT = 2
# Ids that belong to no sequence of a client, for those are counted up from 0.
_IDS = count(-1, -1)


def warm_up(runners: RunnerPair, chunk: int, max_length: int) -> None:
    """Read a chunk of a prompt where requests run, and decode alone and with all rows; nothing of it is kept.

    The generator beside a batch, which only profiled requests use, reads next to nothing. Raises what a runner raises:
    a model that cannot be run is not ready.
    """
    started = time.perf_counter()
    length = min(max_length, runners.model.context_length)
    if runners.batched is None:
        _run(runners.generator, 1, chunk, length)
        _try_profiling(runners, length)
    else:
        try:
            _run(runners.generator, 1, _SHORT, length)
            _try_profiling(runners, length)
        except RunnerFailed as error:
            if not runners.batched.chooses:
                raise
            log.warning("answers cannot be profiled, for the model runs in a batch only: %s", error.message)
            runners.do_without_generator(error.message)  # so it may be with paged attention
        _run(runners.batched, 1, chunk, length)
        if not runners.batched.chooses:  # else all but the first might wait for the first one's end
            _run(runners.batched, runners.batched.max_rows, _SHORT, length)
    runners.forget()
    log.info("warmed up in %.1f s", time.perf_counter() - started)


def scores_prompts(runners: RunnerPair, max_length: int) -> bool:
    """Whether the model gives the logits after each token of a prompt; some graphs give those of the last token only.

    No library tells the shapes of all graphs, so it is tried, on a model that is known to run.
    """
    runner = runners.generator if runners.batched is None else runners.batched
    sequence, prompt = next(_IDS), [1 % runner.model.vocab_size] * _SHORT
    try:
        runner.open(sequence, prompt, Opening(min(max_length, runner.model.context_length), reuse=False))
        runner.prefill(sequence, prompt, positions=True)
    except RunnerFailed:
        return False
    finally:
        runner.close(sequence)
        runners.forget()
    return True


def _try_profiling(runners: RunnerPair, length: int) -> None:
    """Switch profiling on and off for a sequence that has no pass: ONNX Runtime before 1.25 refuses."""
    sequence = next(_IDS)
    runners.generator.open(sequence, [1 % runners.model.vocab_size], Opening(length, reuse=False))
    try:
        for value in ("tried", "0"):
            runners.generator.set_runtime_option(sequence, "enable_profiling", value)
    except RunnerFailed as error:
        log.warning("answers cannot be profiled: %s", error.message)
        runners.do_without_profiles(error.message)
    finally:
        runners.generator.close(sequence)


def _run(runner: Runner, rows: int, num_tokens: int, length: int) -> None:
    """Read a prompt of so many tokens in each row, if the length allows it, and decode all rows together."""
    token = 1 % runner.model.vocab_size
    prompt = [token] * min(num_tokens, length - _DECODED)
    if len(prompt) < _SHORT:
        return
    opened = [next(_IDS) for _ in range(rows)]
    try:
        for sequence in opened:
            runner.open(sequence, prompt, Opening(length, reuse=False))
            runner.prefill(sequence, prompt)
        for _ in range(_DECODED):
            runner.decode(opened, [token] * rows)
    finally:
        for sequence in opened:
            runner.close(sequence)
