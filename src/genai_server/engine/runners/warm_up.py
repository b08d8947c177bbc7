"""Runs a model once in the shapes of later requests, before the engine reports that it is ready.

The first pass of a shape allocates memory and binds buffers. On some devices it also compiles kernels or captures a
graph. Without the warm-up, the first client would have to wait for this.
"""

import logging
import time
from collections import defaultdict
from dataclasses import replace

from genai_server.engine.runners.base import Runner, open_bare, read_all, run_pass
from genai_server.engine.runners.loaded_model import LoadedModel
from genai_server.engine.scheduling.drafts import MAX_LENGTH
from genai_server.engine.scheduling.scheduler_output import ScheduledChunk
from genai_server.engine.scheduling.step_time import MAX_DRAFTED, StepTimeModel
from genai_server.engine.sequence import Sequence
from genai_server.errors import RunnerFailed
from genai_server.timing import Clock

log = logging.getLogger(__name__)
_DECODED = 2
_SHORT = 2
# The most of a prompt on a host's cores, where the first pass takes no longer than others: it tells a token's time.
_HOST_PROMPT = 32
# Numbers of tokens of the passes with drafts on a host's cores. Devices, which are quick, also read the most.
_WITH_DRAFTS = (4, 8, 16)


def warm_up(loaded: LoadedModel, chunk: int) -> None:
    """Run passes on each runner: read a chunk of `chunk` prompt tokens, and decode one row and all rows, with and
    without drafts. The times of passes are stored in the runners' abilities.

    If there is a batch, another runner reads only a very short prompt. Errors of a runner are raised, so that a model
    that cannot run never becomes ready.
    """
    started = time.perf_counter()
    if loaded.generator is not loaded.batch:
        time_passes(loaded.generator, chunk if loaded.batch is None else _SHORT, all_rows=False)
    _try_profiling(loaded)
    if loaded.batch is not None:
        time_passes(loaded.batch, chunk)
    if (draft_model := loaded.draft_model) is not None:
        time_passes(draft_model.runner, chunk)
        time_passes(draft_model.runner, chunk)  # the first time takes longer
        draft_model.times = StepTimeModel(
            draft_model.runner.abilities.tried_passes, draft_model.runner.abilities.tried_prompt_token
        )
    loaded.forget()
    log.info("warmed up in %.1f s", time.perf_counter() - started)


def time_passes(runner: Runner, chunk: int, *, all_rows: bool = True, clock: Clock = time.perf_counter) -> None:
    """Measure passes of a runner, and store the times in seconds in its abilities.

    A chunk of at most `chunk` prompt tokens is read, which is shorter if passes run on the host's cores. Then one row
    is decoded and, with `all_rows`, all rows, with and without drafts. The shortest time of all measurements so far is
    stored for each number of tokens. If passes do not run on the host's cores, everything is done twice, because the
    first passes compile kernels, and the time of the second chunk is stored. Some of the prompts may stay in the prefix
    cache.
    """
    passes: defaultdict[int, list[float]] = defaultdict(list)
    if runner.abilities.uses_host_cores:
        chunk = min(chunk, _HOST_PROMPT)
    for _ in range(1 if runner.abilities.uses_host_cores else 2):
        prompt_token = _run(runner, 1, chunk, passes, clock)
        if all_rows:
            _run(runner, runner.abilities.max_rows, _SHORT, passes, clock)
    for number, earlier in runner.abilities.tried_passes.items():
        passes[number].append(earlier)
    tried = {number: min(seconds) for number, seconds in passes.items()}
    runner.abilities = replace(runner.abilities, tried_passes=tried, tried_prompt_token=prompt_token)


def scores_prompts(loaded: LoadedModel) -> bool:
    """Whether the model can return logits after every token of a prompt, and not only after the last one.

    This is found out by reading a short prompt, because the libraries do not report the output shapes of all graphs.
    The model must have been warmed up before.
    """
    runner = loaded.main
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


def _try_profiling(loaded: LoadedModel) -> None:
    """Switch profiling on and off for a sequence, without running a pass. If that fails, as with ONNX Runtime before
    1.25, the reason is stored in `loaded.why_no_profile`.
    """
    if loaded.why_no_profile:
        return
    runner = loaded.main
    sequence = open_bare(runner, [1 % loaded.main.model.vocab_size], _SHORT)
    try:
        for value in ("tried", "0"):
            runner.set_runtime_option(sequence.id, "enable_profiling", value)
    except RunnerFailed as error:
        log.warning("answers cannot be profiled: %s", error.message)
        loaded.why_no_profile = f"answers cannot be profiled: the installed libraries cannot do it: {error.message}"
    finally:
        runner.close(sequence.id)


def _run(runner: Runner, rows: int, num_tokens: int, passes: dict[int, list[float]], clock: Clock) -> float:
    """Read a prompt of up to `num_tokens` tokens in each of `rows` rows, and then decode all rows together.

    Only a runner whose passes have several sequences can have several rows. The times of decoding passes in seconds are
    appended to `passes`, by their numbers of tokens. Returns the seconds for one token of the prompts.
    """
    token = 1 % runner.model.vocab_size
    prompt = [token] * min(num_tokens, runner.model.max_length - _DECODED)
    if len(prompt) < _SHORT:
        return 0.0
    opened: list[Sequence] = []
    try:
        for _ in range(rows):
            # A Generator has memory for this length at once.
            opened.append(open_bare(runner, prompt, len(prompt) + _DECODED))
        per_token = _seconds(runner, opened, clock) / (rows * len(prompt))
        for _ in range(_DECODED):
            for sequence in opened:
                sequence.append(token)
            passes[rows].append(_seconds(runner, opened, clock))
        if runner.abilities.drafts and rows == runner.abilities.max_rows:
            _read_drafts(runner, opened, passes, clock)
    finally:
        for sequence in opened:
            runner.close(sequence.id)
    return per_token


def _read_drafts(runner: Runner, opened: list[Sequence], passes: dict[int, list[float]], clock: Clock) -> None:
    """Run passes that read drafts of different lengths after the newest tokens of some rows. The drafts are then
    rejected.

    The times of these passes in seconds are appended to `passes`, by their numbers of tokens.
    """
    for number in _WITH_DRAFTS if runner.abilities.uses_host_cores else (*_WITH_DRAFTS, MAX_DRAFTED):
        rows = opened[: -(-number // (1 + MAX_LENGTH))]
        for sequence in rows:
            sequence.append(sequence.tokens[-1])
        num_drafted = number - len(rows)
        if (
            num_drafted > len(rows) * MAX_LENGTH
            or number + sum(len(row.tokens) for row in rows) > runner.model.max_length
        ):
            continue
        chunks = []
        for sequence in rows:
            chunks.append(ScheduledChunk.next(sequence, draft=sequence.tokens[-1:] * min(MAX_LENGTH, num_drafted)))
            num_drafted -= len(chunks[-1].draft)
        started = clock()
        run_pass(runner, chunks)
        passes[number].append(clock() - started)
        for sequence in rows:
            runner.accept(sequence.id, [])


def _seconds(runner: Runner, sequences: list[Sequence], clock: Clock) -> float:
    """Read all unread tokens of some sequences in one pass. Returns the seconds that it took."""
    started = clock()
    read_all(runner, sequences)
    return clock() - started
