"""Runs a model once in the shapes of later requests, before the engine reports that it is ready.

The first pass of a shape allocates memory and binds buffers. On some devices it also compiles kernels or captures a
graph. Without the warm-up, the first client would wait for this.
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
# Negative ids: those of clients' sequences ascend from 0.
_IDS = count(-1, -1)


def warm_up(runners: RunnerPair, chunk: int, max_length: int) -> None:
    """Read a chunk of a prompt, and decode one row and all rows, where requests run. Nothing of it is kept.

    A generator beside a batch reads only a very short prompt. Raises what a runner raises, so that a model which
    cannot run never becomes ready.
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
            log.warning("answers cannot be profiled, because the model runs in a batch only: %s", error.message)
            runners.do_without_generator(error.message)  # possible with paged attention
        _run(runners.batched, 1, chunk, length)
        if not runners.batched.chooses:  # otherwise the other rows might wait until the first has ended
            _run(runners.batched, runners.batched.max_rows, _SHORT, length)
    runners.forget()
    log.info("warmed up in %.1f s", time.perf_counter() - started)


def scores_prompts(runners: RunnerPair, max_length: int) -> bool:
    """Whether the model gives the logits after each token of a prompt; some graphs give those of the last token only.

    The libraries do not tell the shapes of all graphs, so a short prompt is tried. The model must be known to run.
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
    """Switch profiling on and off for a sequence without a pass. ONNX Runtime before 1.25 refuses this."""
    sequence = next(_IDS)
    runners.generator.open(sequence, [1 % runners.model.vocab_size], Opening(length, reuse=False))
    try:
        for value in ("tried", "0"):
            runners.generator.set_runtime_option(sequence, "enable_profiling", value)
    except RunnerFailed as error:
        log.warning("answers cannot be profiled: %s", error.message)
        runners.do_without_profiles(f"the installed libraries cannot do it: {error.message}")
    finally:
        runners.generator.close(sequence)


def _run(runner: Runner, rows: int, num_tokens: int, length: int) -> None:
    """Read a prompt of `num_tokens` in each row, or what `length` allows, and decode all rows together."""
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
