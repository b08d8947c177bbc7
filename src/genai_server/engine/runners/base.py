"""The interface of runners, by which the engine's loop runs a model in different ways.

For warm-up and measurements, `open_bare`, `read_all` and `try_pass` run sequences that no client has requested.
"""

from abc import ABC, abstractmethod
from collections import abc
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

from genai_server.engine.abilities import Abilities
from genai_server.engine.kv_cache.kv_slots import KvSlots
from genai_server.engine.scheduling.scheduler_output import NOTHING_RESERVED, KvBudget, ScheduledChunk
from genai_server.engine.scores import Scores
from genai_server.engine.sequence import LoadedAdapter, Sequence
from genai_server.errors import AdapterLoadFailed, InvalidField, RunnerFailed
from genai_server.messages.generation_request import GenerationRequest, ModelInfo, PooledText

# What ONNX Runtime says of a pass that was interrupted.
INTERRUPTED_MESSAGE = "terminate flag"


class Terminated(Exception):
    """Raised for a sequence whose session an operator has terminated (runtime option terminate_session)."""


class Interrupted(Exception):
    """Raised if `interrupt` has ended a pass. None of the pass's tokens count as read, so the same pass can be run
    again.
    """


class Runner(ABC):
    """Runs a model for sequences of tokens. Used by the thread of the engine's loop, but any thread may call
    `interrupt`.

    Each sequence must be opened before its first pass and closed after its last one. Every method except `close` may
    raise RunnerFailed, which affects only the sequences of that call. Methods that some runners do not support have a
    default here.
    """

    abilities: Abilities
    model: ModelInfo
    # The KV cache slots; None if the runner does not keep them itself.
    slots: KvSlots | None = None
    # ONNX Runtime's run options of the pass in progress, if it can be interrupted.
    _interruptible: Any = None
    # Whether the pass in progress, or the next one, is interrupted.
    _is_interrupted = False
    # The number of tokens up to which a sequence has the short factors of the rope (`DecoderGraph.switches_at`); None
    # without such a rope.
    switches_at: int | None = None

    @property
    def nodes(self) -> Mapping[str, int | None]:
        """How many nodes of the graph each execution provider runs; None where the number is unknown."""
        return {}

    @abstractmethod
    def open(self, sequence: Sequence) -> int:
        """Prepare a sequence to run. Returns how many of its tokens need not be read, because they are in a cached
        prefix.
        """

    @abstractmethod
    def forward(self, chunks: abc.Sequence[ScheduledChunk]) -> list[Scores]:
        """Run a forward pass that reads the given chunks, which are tokens of different sequences. Returns the scores
        of each chunk, in order.

        If the runner's abilities have `mixes`, a pass has at most `max_rows` chunks, each with any number of tokens.
        Otherwise it has either chunks that decode, or a single chunk of a prompt. If the abilities have `drafts`,
        chunks that decode may have draft tokens.

        Draft tokens do not count as read, except those that are passed to `accept` before the next pass. The next pass
        may overwrite the returned arrays. Raises Interrupted and, if the pass has one sequence, Terminated.
        """

    @abstractmethod
    def close(self, sequence: int) -> None:
        """End the sequence with this id and free its memory. Does nothing for an unknown id."""

    def check(self, request: GenerationRequest) -> None:
        """Raise InvalidField for a request that this runner cannot run."""
        if self.abilities.pools != bool(request.texts):
            wanted = "texts to pool" if self.abilities.pools else "a prompt to continue"
            raise InvalidField("model", f"takes {wanted}")
        if request.exact and (why := self.abilities.why_not_exact):
            raise InvalidField("exact", f"is not supported with this model here: {why}")

    def fit_chunk(self, sequence: Sequence, maximum: int) -> int:
        """Number of unread prompt tokens of a sequence that the next pass should read if it has room for `maximum`
        tokens.

        A single token of a prompt is never left for another pass, because the kernels for one token may round
        differently; in that case the result is `maximum + 1`. An `og.Generator` reads some prompts in one pass,
        whatever `maximum` is: those that need the long rope factors, because the first chunks would get the short
        factors, and those with images or audio, which onnxruntime-genai accepts only together with the first tokens.
        """
        # The last produced token is left to a pass of its own, from which the sequence decodes as before.
        num_left = sequence.num_unread - (1 if sequence.num_produced else 0)
        has_inputs = sequence.images is not None or sequence.audio is not None
        if not sequence.batched and (self.is_long(sequence) or has_inputs):
            return max(1, num_left)
        return num_left if num_left <= maximum + 1 else maximum

    def may_draft(self, sequence: Sequence) -> bool:
        """Whether draft tokens for speculative decoding may follow the newest token of a sequence.

        The length of a draft depends on measured times. If a pass over several tokens gives results that are not
        bitwise equal to those of single tokens, sequences with a seed have no drafts, because a seed asks for
        reproducible answers.
        """
        is_free = not self.abilities.why_not_exact or sequence.request.sampling.seed is None
        return self.abilities.drafts and is_free

    def reserved(self, maximum: int) -> KvBudget:
        """Part of the KV cache that low-priority sequences must leave free: that of the most recently used cached
        prefixes, of at most `maximum` prefixes.
        """
        return NOTHING_RESERVED

    def is_long(self, sequence: Sequence) -> bool:
        """Whether a sequence has so many tokens that it needs the long factors of the model's rope (rotary position
        embedding).
        """
        return self.switches_at is not None and len(sequence.tokens) > self.switches_at

    def must_reopen(self, sequence: Sequence) -> bool:
        """Whether a sequence must be closed and opened again, and all its tokens read again, because it has become so
        long that it needs the long rope factors.
        """
        return False

    def match_again(self, sequence: Sequence) -> int:
        """Search the prefix cache again before the first chunk of a prompt is read, because other sequences may have
        read the same beginning since `open`. Returns the number of tokens that are now cached.
        """
        return sequence.num_read

    def accept(self, sequence: int, tokens: abc.Sequence[int]) -> None:
        """Count the draft tokens `tokens` of the last pass as read. They are the first ones of the draft that the
        sequence with this id had in that pass.
        """
        raise RunnerFailed("this runner takes no drafts")

    def forget(self) -> int:
        """Drop the cached prefixes of all ended sequences. Returns the number of prefixes."""
        return 0

    def load_adapter(self, path: Path) -> Any:
        """Load the adapter file at `path` for sequences of this runner. Raises AdapterLoadFailed.

        Returns an object with what this runner needs of the adapter. The adapter's memory is freed when the object is
        no longer referenced.
        """
        raise AdapterLoadFailed("this model takes no adapters")

    def _adapter(self, sequence: Sequence) -> Any:
        """Return what `load_adapter` has returned for a sequence's adapter; None if it has none."""
        return None if sequence.adapter is None else sequence.adapter.loaded

    def set_runtime_option(self, sequence: int, option: str, value: str) -> None:
        """Set an option of onnxruntime-genai, `terminate_session` or `enable_profiling`, for the sequence with this id.

        The value for `enable_profiling` is "0" or the path prefix of profiles. A pass is profiled only if it has no
        other sequence.
        """
        raise RunnerFailed(f"this runner has no runtime option {option}")

    def interrupt(self) -> None:
        """Interrupt the pass in progress, or otherwise the next one, if it can be interrupted. Any thread may call
        this.
        """
        self._is_interrupted = True
        if (options := self._interruptible) is not None:
            options.terminate = True

    def cancel_interrupt(self) -> None:
        """Cancel an interrupt that has not interrupted any pass."""
        self._is_interrupted = False

    def _allow_interrupts(self, options: Any) -> None:
        """Allow `interrupt` to end the pass that runs with these run options of ONNX Runtime."""
        self._interruptible = options
        if self._is_interrupted:
            options.terminate = True

    def end_session(self) -> None:  # noqa: B027 - not every runner has one
        """Close the model's session, so that ONNX Runtime writes the profile of the session. Nothing may be called
        afterwards.
        """


def run_pass(runner: Runner, chunks: abc.Sequence[ScheduledChunk]) -> list[Scores]:
    """Run a pass and count its tokens as read in their sequences. If the runner raises an error, nothing is counted."""
    scores = runner.forward(chunks)
    for chunk in chunks:
        chunk.count()
    return scores


# Negative ids: those of clients' sequences ascend from 0.
_IDS = count(-1, -1)
_SHORT = 2


def open_bare(
    runner: Runner,
    prompt: list[int],
    max_length: int,
    *,
    id: int | None = None,
    reuses_past: bool = False,
    adapter: LoadedAdapter | None = None,
    **fields: Any,
) -> Sequence:
    """Open a sequence that no client has requested, and that may grow to `max_length` tokens.

    `id` is None for a new id. `reuses_past` says whether a cached prefix may be used, and `adapter` is its LoRA
    adapter. `fields` are further fields of its GenerationRequest.
    """
    request = GenerationRequest("", prompt, max(0, max_length - len(prompt)), max_length, **fields)
    number = next(_IDS) if id is None else id
    sequence = Sequence(number, (0, 0), request, lambda: 0.0, adapter=adapter, reuses_past=reuses_past)
    sequence.num_read = runner.open(sequence)
    return sequence


def read_all(runner: Runner, sequences: abc.Sequence[Sequence]) -> list[Scores]:
    """Read all unread tokens of several sequences in one pass. Raises RunnerFailed."""
    return run_pass(
        runner,
        [ScheduledChunk.next(sequence, sequence.num_unread, texts=sequence.request.texts) for sequence in sequences],
    )


def try_pass(runner: Runner) -> None:
    """Read a short prompt or text that no client has requested. Raises the runner's error if the pass fails."""
    texts = [PooledText(_SHORT)] if runner.abilities.pools else []
    sequence = open_bare(runner, [1 % runner.model.vocab_size] * _SHORT, 2 * _SHORT, texts=texts)
    try:
        read_all(runner, [sequence])
    finally:
        runner.close(sequence.id)
