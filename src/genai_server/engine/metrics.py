"""Counts an engine's work for the metrics: `Meter` has the counters, and `Tally` is a histogram."""

from collections import Counter, abc

import numpy as np

from genai_server.engine.encoder_worker import AudioWorker
from genai_server.engine.profiling.runtime_options import RuntimeOptionState
from genai_server.engine.requests import RequestTable
from genai_server.engine.runners.loaded_model import LoadedModel
from genai_server.engine.scheduling.scheduler import Scheduler
from genai_server.engine.scheduling.scheduler_output import Step
from genai_server.engine.sequence import Sequence
from genai_server.messages.engine_protocol import Figures, Histogram

# Bounds in seconds, for the duration of a step and the time between two tokens.
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 40.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128)


class Tally:
    """A histogram to which values are added cheaply: the method `add` only appends a value to a list, and the values
    are sorted into buckets when the histogram is read.

    `bounds` are the upper bounds of the buckets, in ascending order; a last bucket has all larger values.
    """

    def __init__(self, bounds: abc.Sequence[float]) -> None:
        self._bounds = np.array(bounds, dtype=np.float64)
        self._counts = np.zeros(len(bounds) + 1, dtype=np.int64)
        self._sum = 0.0
        self._fresh: list[float] = []
        self.add = self._fresh.append

    def histogram(self) -> Histogram:
        """Return the histogram of all values that were added so far: the bounds, the count of values in each bucket,
        and their sum.
        """
        if self._fresh:
            values = np.array(self._fresh)
            self._counts += np.bincount(np.searchsorted(self._bounds, values), minlength=len(self._counts))
            self._sum += float(values.sum())
            self._fresh.clear()
        return Histogram(self._bounds.tolist(), self._counts.tolist(), self._sum)


class Meter:
    """Counters of an engine's work, which `figures` returns for the metrics. The engine's loop creates it; only the
    loop's thread uses it, for every token and every pass.
    """

    def __init__(self) -> None:
        # By the names of API keys, of which there are as many as the operator has made.
        self._prompt_tokens: Counter[str] = Counter()
        self._generation_tokens: Counter[str] = Counter()
        self._cache_queries = 0
        self._cache_hits = 0
        self._low_priority_preemptions = 0
        self._preemptions = 0
        self._drafted = 0
        self._accepted = 0
        self._prefill_passes = Tally(_SECONDS)
        self._decode_passes = Tally(_SECONDS)
        self._decode_rows = Tally(_ROWS)
        self._token_gaps = Tally(_SECONDS)

    def opened(self, sequence: Sequence) -> None:
        """Count the prompt tokens of `sequence`, which has got a KV cache slot, as looked up in the prefix cache, and
        those of them that were found there.
        """
        request = sequence.request
        if sequence.batched and request.cache_prompt and not request.prompt_logprobs:
            self._cache_queries += len(request.prompt)
            self._cache_hits += sequence.num_cached

    def preempted(self, sequence: Sequence) -> None:
        """Count that `sequence` was preempted, which means that it gave up its KV cache slot and waits again.

        Preemptions of low priority, for other sequences, and of normal priority, for lack of memory, have separate
        counters.
        """
        if sequence.low_priority:
            self._low_priority_preemptions += 1
        else:
            self._preemptions += 1

    def matched(self, num_tokens: int) -> None:
        """Count `num_tokens` further prompt tokens that were found in the prefix cache after `opened` was called for
        their sequence.
        """
        self._cache_hits += num_tokens

    def passed(self, step: Step, seconds: float) -> None:
        """Count a step whose pass is complete, and its duration `seconds` in seconds."""
        if step.decodes:
            self._decode_passes.add(seconds)
            self._decode_rows.add(len(step.chunks))
        else:
            self._prefill_passes.add(seconds)

    def produced(self, sequence: Sequence, num_tokens: int, before: float | None) -> None:
        """Count `num_tokens` new tokens of `sequence`, and the time between tokens. `before` is the time of the token
        before them; None if there was none.

        The time from `before` to the newest token is divided equally among the new tokens.
        """
        self._generation_tokens[sequence.request.key_name] += num_tokens
        # Nobody waits for the next token of a low-priority sequence.
        if before is None or sequence.last is None or sequence.low_priority:
            return
        for _ in range(num_tokens):
            self._token_gaps.add((sequence.last - before) / num_tokens)

    def prompt_read(self, sequence: Sequence) -> None:
        """Count the prompt tokens of `sequence`, whose prompt has now been read completely."""
        self._prompt_tokens[sequence.request.key_name] += len(sequence.request.prompt)

    def verified(self, num_drafted: int, num_accepted: int) -> None:
        """Count the `num_drafted` tokens of a draft that a pass has verified, and the `num_accepted` tokens among them
        that were accepted.
        """
        self._drafted += num_drafted
        self._accepted += num_accepted

    def figures(
        self, scheduler: Scheduler, requests: RequestTable, options: RuntimeOptionState, loaded: LoadedModel
    ) -> Figures:
        """Return all counters, together with the current state of the engine's scheduler, requests, options and loaded
        model.
        """
        running, encoder, disk = scheduler.running, loaded.encoder, loaded.disk_cache
        num_encoded = 0 if encoder is None else encoder.num_encoded
        is_audio = isinstance(encoder, AudioWorker)
        return Figures(
            kv_tokens=sum(sequence.num_read for sequence in running),
            kv_capacity=loaded.kv_capacity,
            prompt_tokens=self._prompt_tokens.total(),
            generation_tokens=self._generation_tokens.total(),
            prompt_tokens_by_key=dict(self._prompt_tokens),
            generation_tokens_by_key=dict(self._generation_tokens),
            cache_queries=self._cache_queries,
            cache_hits=self._cache_hits,
            drafted=self._drafted,
            accepted=self._accepted,
            encoded_images=0 if is_audio else num_encoded,
            encoded_sounds=num_encoded if is_audio else 0,
            low_priority_preemptions=self._low_priority_preemptions,
            preemptions=self._preemptions,
            terminated=requests.num_terminated,
            profile_sessions=options.num_profile_sessions,
            profiled=sum(sequence.profile.is_on for sequence in running),
            prefill_passes=self._prefill_passes.histogram(),
            decode_passes=self._decode_passes.histogram(),
            decode_rows=self._decode_rows.histogram(),
            token_gaps=self._token_gaps.histogram(),
            disk_cache=None if disk is None else disk.figures(scheduler.seconds_per_token),
            answer_bytes=0 if scheduler.answers is None else scheduler.answers.num_bytes,
        )
