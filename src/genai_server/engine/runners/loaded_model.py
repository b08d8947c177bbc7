"""What an engine has loaded for its model (`LoadedModel`), which runner runs which sequence (`RunnerPair`), and the
first passes before the engine reports that it is ready (`warm_up`).

Most sequences run on the main runner, which is a batch if the model allows that. Sequences with a LoRA adapter that the
batch cannot apply run on a second runner, each on an `og.Generator` of onnxruntime-genai.

The warm-up runs the model once in the shapes of later requests. The first pass of a shape allocates memory and binds
buffers. On some devices it also compiles kernels or captures a graph. Without the warm-up, the first client would have
to wait for this.
"""

import logging
import math
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from genai_server.engine.encoder_worker import EncoderWorker
from genai_server.engine.kv_cache.kv_events import CachedBlocks, KvEventPublisher
from genai_server.engine.runners.adapters import Adapters
from genai_server.engine.runners.base import Runner, open_bare, read_all, run_pass
from genai_server.engine.scheduling.drafts import MAX_LENGTH
from genai_server.engine.scheduling.scheduler_output import ScheduledChunk, Step
from genai_server.engine.scheduling.step_time import MAX_DRAFTED, StepTimeModel
from genai_server.engine.scores import Scores
from genai_server.engine.sequence import Sequence
from genai_server.errors import RunnerFailed
from genai_server.messages.generation_request import Batching, GenerationRequest
from genai_server.timing import Clock

if TYPE_CHECKING:
    from genai_server.engine.disk_cache import DiskCache
    from genai_server.engine.runners.draft_model import DraftModel

log = logging.getLogger(__name__)
_DECODED = 2
_SHORT = 2
# The most of a prompt on a host's cores, where the first pass takes no longer than others: it tells a token's time.
_HOST_PROMPT = 32
# Numbers of tokens of the passes with drafts on a host's cores. Devices, which are quick, also read the most.
_WITH_DRAFTS = (4, 8, 16)


@dataclass(eq=False)
class LoadedModel:
    """Everything that an engine has loaded for its model: the runners, and what works with them, such as the encoder,
    the draft model and the prefix cache on disk. `load_model` creates it once when the engine starts.

    The attribute `main` is the runner of most sequences: `batch` if the model can run in a batch, otherwise
    `generator`.
    """

    # The runner of those sequences that the batch cannot run, which are all if there is no batch. It is the batch
    # itself if that can run all sequences.
    generator: Runner
    batch: Runner | None = None
    # Why there is no batch; None if there is one.
    reason: str | None = None
    # Encodes images or audio; None if the model reads text only.
    encoder: EncoderWorker[Any] | None = None
    # Drafts for sequences of the batch; None without one.
    draft_model: "DraftModel | None" = None
    # Publishes what each step changes in the prefix cache; None if the settings do not ask for it.
    kv_events: KvEventPublisher | None = None
    # The prefix cache as API processes receive it; None if they do not choose between engines.
    cached_blocks: CachedBlocks | None = None
    # The prefix cache on disk; None if the settings do not ask for it, or it cannot be used.
    disk_cache: "DiskCache | None" = None
    # Why no sequence can be profiled; empty if sequences can.
    why_no_profile: str = ""

    def __post_init__(self) -> None:
        self.main = self.batch or self.generator
        if self.main.abilities.pools:
            self.why_no_profile = "a model for embeddings or reranking cannot be profiled"
        # A runner that takes none says why.
        self.adapters = Adapters(self.main if self.main.abilities.adapters else self.generator)

    @property
    def batching(self) -> Batching:
        """Description of how requests run: in a batch or why not, how many at once, and on which execution providers.
        The engine sends it to the API processes, which report it to clients and operators.
        """
        can, nodes = self.main.abilities, dict(self.main.nodes)
        if self.batch is None:
            is_exact = not can.pools and not can.why_not_exact
            return Batching(can.name, self.reason, nodes=nodes, exact=is_exact)
        draft_model = None if self.draft_model is None else self.draft_model.name
        return Batching(can.name, None, can.max_rows, nodes, can.mixes, not can.why_not_exact, draft_model=draft_model)

    @property
    def kv_capacity(self) -> int:
        """Number of tokens that the KV cache can hold for all sequences together. 0 if sequences do not share memory,
        because there is no batch or each slot has memory for the longest sequence.
        """
        can = self.main.abilities
        return 0 if self.batch is None else can.memory.num_tokens(can.max_rows)

    @property
    def kv_bytes(self) -> int:
        """Number of bytes that KV cache slots use at present, including those of the draft model. The KV cache of a
        runner without slots, such as that of onnxruntime-genai, is not counted.
        """
        return sum(runner.slots.num_bytes for runner, _ in self._shares() if runner.slots is not None)

    @property
    def kv_range(self) -> tuple[int, int]:
        """The smallest and the largest useful argument of `resize`, in bytes: with less memory a single sequence of the
        maximum length would not fit, and with more memory the KV caches would not use all of it.
        """
        shares = [(runner.abilities.memory, share) for runner, share in self._shares()]
        min_bytes = max(math.ceil(memory.min_bytes / share) for memory, share in shares)
        return min_bytes, max(math.ceil(memory.max_bytes / share) for memory, share in shares)

    def resize(self, num_bytes: int) -> None:
        """Set the limit of the memory for KV caches, including that of the draft model, to `num_bytes` bytes. The
        caller must then preempt sequences that no longer fit, and call `fit_memory`.
        """
        for runner, share in self._shares():
            runner.abilities.memory.resize(int(share * num_bytes))

    def fit_memory(self) -> None:
        """Free KV cache memory that is in use beyond the limit that `resize` has set, by discarding cached prefixes and
        the draft model's copies of sequences.
        """
        if self.draft_model is not None:
            self.draft_model.fit()
        for runner, _ in self._shares():
            if runner.slots is not None:
                runner.slots.fit()

    def forget(self) -> int:
        """Drop all cached prefixes, in memory and on disk. Returns how many KV cache slots of the
        main runner had one.
        """
        if self.disk_cache is not None:
            self.disk_cache.clear()
        if self.draft_model is not None:
            self.draft_model.runner.forget()
        return self.main.forget()

    def _shares(self) -> list[tuple[Runner, float]]:
        """Return the runners that have a KV cache, each with the part, from 0 to 1, that it gets of the memory for KV
        caches.
        """
        if self.draft_model is None:
            return [(self.main, 1.0)]
        share = self.draft_model.kv_share
        return [(self.main, 1.0 - share), (self.draft_model.runner, share)]


class RunnerPair:
    """Runs each sequence on the right one of a model's two runners: `main`, or `generator` for requests with a LoRA
    adapter that `main` cannot apply. Both may be the same runner. The engine's loop uses it in place of the runners.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self.loaded = loaded
        self.main = loaded.main
        self.generator = loaded.generator

    def of(self, sequence: Sequence) -> Runner:
        """Return the runner on which `sequence` runs, which `open` has chosen before."""
        return self.main if sequence.batched else self.generator

    def for_request(self, request: GenerationRequest) -> Runner:
        """Return the runner on which the sequences of a request will run: the main runner, unless the request has a
        LoRA adapter that it cannot apply.
        """
        return self.main if request.adapter is None or self.main.abilities.adapters else self.generator

    def reuses_past(self, request: GenerationRequest) -> bool:
        """Whether the sequences of a request may begin with a cached prefix. They may not if the request refuses that
        or asks for log probabilities of its prompt, which must then be read, or if the runner caches no prefixes.
        """
        caches = self.for_request(request).abilities.caches_prefixes
        return caches and request.cache_prompt and not request.prompt_logprobs

    def open(self, sequence: Sequence) -> None:
        """Choose the runner of a sequence, and open the sequence on it. Sets the numbers of read and cached tokens in
        the sequence. Raises RunnerFailed.
        """
        sequence.batched = self.for_request(sequence.request) is self.loaded.batch
        sequence.profile.active = None
        sequence.num_read = self.of(sequence).open(sequence)
        if not sequence.num_produced and not sequence.num_preemptions:
            sequence.num_cached = sequence.num_read

    def forward(self, step: Step) -> list[Scores]:
        """Run the forward pass of a step, and count its tokens as read. Returns the scores of each of the step's
        chunks.

        All sequences of the step must be on the same runner. Errors of the runner are raised unchanged.
        """
        return run_pass(self.of(step.chunks[0].sequence), step.chunks)

    def outgrown(self, sequences: Iterable[Sequence]) -> list[Sequence]:
        """Return those decoding sequences among `sequences` that have become so long that they need the long factors of
        the model's rope (rotary position embedding). The caller must `reopen` them, so that their tokens are read again
        with these factors.
        """
        if self.main.switches_at is None:
            return []
        return [s for s in sequences if s.batched and s.is_decoding and self.main.must_reopen(s)]

    def reopen(self, sequence: Sequence) -> None:
        """Close a running sequence and open it again, because it needs the long factors of the model's rope. All its
        tokens must then be read again, except those in a cached prefix. Raises RunnerFailed.
        """
        self.close(sequence)
        self.open(sequence)

    def close(self, sequence: Sequence) -> None:
        """End a sequence on its runner and in the draft model, and free its memory. If a prefix is being loaded from
        disk for the sequence, the load is cancelled.
        """
        if self.loaded.disk_cache is not None:
            self.loaded.disk_cache.cancel(sequence)
        if self.loaded.draft_model is not None:
            self.loaded.draft_model.close(sequence.id)
        self.of(sequence).close(sequence.id)


def warm_up(loaded: LoadedModel, chunk: int) -> None:
    """Run the first passes on each runner before the engine reports that it is ready, so that no client has to wait for
    their memory and kernels. Cached prefixes are dropped afterwards.

    The main runner reads a chunk of `chunk` prompt tokens and decodes. If it runs a batch, it decodes one row and then
    as many rows as it can, also with drafts. Any second runner reads only a very short prompt. The measured times are
    stored in the runners' abilities, from which the scheduler estimates later passes. Errors of a runner are raised, so
    that a model that cannot run never becomes ready.
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
    """Measure how long passes of a runner take, and store the times, in seconds, in the runner's abilities.

    A chunk of at most `chunk` prompt tokens is read; it is shorter if passes run on the host's cores. Then one row is
    decoded and, with `all_rows`, as many rows as the runner can have, with and without drafts. The shortest time of all
    measurements so far is stored for each number of tokens. If passes do not run on the host's cores, everything is
    done twice, because the first passes compile kernels, and the time of the second chunk is stored. Some of the
    prompts may stay in the prefix cache. `clock` returns the present time in seconds.
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
    """Whether the model can return logits after every token of a prompt, as log probabilities of prompts require, and
    not only after the last token.

    This is found out by reading a short prompt, because the libraries do not report the output shapes of all graphs.
    All cached prefixes are dropped. `warm_up` must have been called before.
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
    """Test whether profiling can be switched on and off for a sequence, without running a pass. If it cannot, as with
    ONNX Runtime before 1.25, the reason is stored in `loaded.why_no_profile` and logged.
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
    """Read a prompt of up to `num_tokens` tokens in each of `rows` new sequences, decode a few tokens of all of them
    together, and close them. Returns the seconds for one token of the prompts.

    More than one row needs a runner whose passes can read several sequences. The times of decoding passes, in seconds,
    are appended to `passes` by the number of tokens that the pass has read. `clock` returns the present time in
    seconds.
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
    """Run passes that read drafts of different lengths after the newest tokens of the sequences in `opened`. The draft
    tokens are rejected afterwards.

    The times of these passes, in seconds, are appended to `passes` by the number of tokens that the pass has read.
    `clock` returns the present time in seconds.
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
    """Read all unread tokens of the opened `sequences` in one pass. Returns the seconds that the
    pass took by `clock`.
    """
    started = clock()
    read_all(runner, sequences)
    return clock() - started
