"""Runs a model once in the shapes of later requests, before the engine reports that it is ready.

The first pass of a shape allocates memory and binds buffers. On some devices it also compiles kernels or captures a
graph. Without the warm-up, the first client would wait for this.
"""

import logging
import time

from genai_server.engine.runners.bare_sequences import open_bare, read_all
from genai_server.engine.runners.base import Runner
from genai_server.engine.runners.runner_pair import RunnerPair
from genai_server.engine.sequence import Sequence
from genai_server.errors import RunnerFailed

log = logging.getLogger(__name__)
_DECODED = 2
_SHORT = 2


def warm_up(runners: RunnerPair, chunk: int) -> None:
    """Read a chunk of a prompt, and decode one row and all rows, where requests run. Nothing of it is kept.

    Next to a batch, a generator reads only a very short prompt. Raises what a runner raises, so that a model which
    cannot run never becomes ready.
    """
    started = time.perf_counter()
    length = runners.main.model.max_length
    if not runners.has_batch:
        _run(runners.generator, 1, chunk, length)
        _try_profiling(runners)
    else:
        try:
            _run(runners.generator, 1, _SHORT, length)
            _try_profiling(runners)
        except RunnerFailed as error:
            if not runners.main.abilities.chooses:
                raise
            log.warning("answers cannot be profiled, because the model runs in a batch only: %s", error.message)
            runners.why_no_profile = (  # possible with paged attention
                f"this model's answers cannot be profiled, because it runs in a batch only: {error.message}"
            )
        _run(runners.main, 1, chunk, length)
        if not runners.main.abilities.chooses:  # otherwise the other rows might wait until the first has ended
            _run(runners.main, runners.main.abilities.max_rows, _SHORT, length)
    if (draft_model := runners.draft_model) is not None:
        runner = draft_model.runner
        _run(runner, 1, chunk, runner.model.max_length)
        _run(runner, runner.abilities.max_rows, _SHORT, runner.model.max_length)
        draft_model.measure(chunk)
    runners.forget()
    log.info("warmed up in %.1f s", time.perf_counter() - started)


def scores_prompts(runners: RunnerPair) -> bool:
    """Whether the model gives the logits after each token of a prompt; some graphs give those of the last token only.

    The libraries do not tell the shapes of all graphs, so a short prompt is tried. The model must be known to run.
    """
    runner = runners.main
    prompt = [1 % runner.model.vocab_size] * _SHORT
    sequence = open_bare(runner, prompt, _SHORT + _DECODED, prompt_logprobs=True)
    try:
        read_all(runner, [sequence])
    except RunnerFailed:
        return False
    finally:
        runner.close(sequence.id)
        runner.forget()
    return True


def _try_profiling(runners: RunnerPair) -> None:
    """Switch profiling on and off for a sequence without a pass. ONNX Runtime before 1.25 refuses this."""
    if runners.why_no_profile:
        return
    sequence = open_bare(runners.generator, [1 % runners.main.model.vocab_size], _SHORT)
    try:
        for value in ("tried", "0"):
            runners.generator.set_runtime_option(sequence.id, "enable_profiling", value)
    except RunnerFailed as error:
        log.warning("answers cannot be profiled: %s", error.message)
        runners.why_no_profile = f"answers cannot be profiled: the installed libraries cannot do it: {error.message}"
    finally:
        runners.generator.close(sequence.id)


def _run(runner: Runner, rows: int, num_tokens: int, length: int) -> None:
    """Read a prompt of `num_tokens` in each row, or what `length` allows, and decode all rows together."""
    token = 1 % runner.model.vocab_size
    prompt = [token] * min(num_tokens, length - _DECODED)
    if len(prompt) < _SHORT:
        return
    opened: list[Sequence] = []
    try:
        for _ in range(rows):
            # A Generator has memory for this length at once.
            opened.append(open_bare(runner, prompt, len(prompt) + _DECODED))
            read_all(runner, opened[-1:])
        for _ in range(_DECODED):
            for sequence in opened:
                sequence.append(token)
            read_all(runner, opened)
    finally:
        for sequence in opened:
            runner.close(sequence.id)
