"""Interface between the engine's loop and the runners, which run a model.

For warm-up and measurements, `open_bare`, `read_all` and `try_pass` run sequences without a client.
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
    """The sequence's session is in the terminated state (runtime option terminate_session)."""


class Interrupted(Exception):
    """A pass was ended by `interrupt`. None of its tokens count as read, so all of them can be read again."""


class Runner(ABC):
    """Runs sequences of tokens through a model. Other threads may only call `interrupt`.

    A runner knows a sequence from `open` to `close`. Every method except `close` may raise RunnerFailed, which concerns
    only the sequences of the call. Methods that not every runner supports have a default here.
    """

    abilities: Abilities
    model: ModelInfo
    # The KV cache slots; None if the runner does not keep them itself.
    slots: KvSlots | None = None
    # ONNX Runtime's run options of the pass in progress, if it can be interrupted.
    _interruptible: Any = None
    # Whether the pass in progress, or the next one, is interrupted.
    _is_interrupted = False
    # The original context of a rope with short and long factors (`DecoderGraph.switches_at`); None without one.
    switches_at: int | None = None

    @property
    def nodes(self) -> Mapping[str, int | None]:
        """Number of graph nodes that each execution provider runs; None where the number is unknown."""
        return {}

    @abstractmethod
    def open(self, sequence: Sequence) -> int:
        """Start a sequence. Returns how many of its tokens come from a cached prefix and need not be read."""

    @abstractmethod
    def forward(self, chunks: abc.Sequence[ScheduledChunk]) -> list[Scores]:
        """Run a pass. Returns the scores of each chunk, in order.

        No two chunks are of the same sequence. A runner whose abilities have `mixes` takes at most `max_rows` chunks of
        any number of tokens. Other runners take either chunks that decode, or a single chunk. If the abilities have
        `drafts`, chunks that decode may have drafts.

        Draft tokens do not count as read, except those that are given to `accept` before the next pass. The next pass
        may overwrite the returned arrays. Raises Interrupted, and Terminated if the pass has one sequence.
        """

    @abstractmethod
    def close(self, sequence: int) -> None:
        """End the sequence with this id, if it is known, and free its memory."""

    def check(self, request: GenerationRequest) -> None:
        """Raise InvalidField for a request that this runner cannot run."""
        if self.abilities.pools != bool(request.texts):
            wanted = "texts to pool" if self.abilities.pools else "a prompt to continue"
            raise InvalidField("model", f"takes {wanted}")
        if request.exact and (why := self.abilities.why_not_exact):
            raise InvalidField("exact", f"is not supported with this model here: {why}")

    def fit_chunk(self, sequence: Sequence, maximum: int) -> int:
        """Number of unread prompt tokens to read in a pass of at most `maximum` tokens.

        An `og.Generator` reads a prompt that needs the long rope factors in one pass, whatever `maximum` is: it would
        apply the short factors to the chunks at the beginning. It also reads a prompt with images or audio in one pass,
        because it takes them with the first tokens only. No chunk leaves a single token of a prompt to another pass,
        whose kernel may round differently; then the result exceeds `maximum` by one.
        """
        # The last produced token is left to a pass of its own, from which the sequence decodes as before.
        left = sequence.num_unread - (1 if sequence.num_produced else 0)
        has_inputs = sequence.images is not None or sequence.audio is not None
        if not sequence.batched and (self.is_long(sequence) or has_inputs):
            return max(1, left)
        return left if left <= maximum + 1 else maximum

    def may_draft(self, sequence: Sequence) -> bool:
        """Whether draft tokens for speculative decoding may follow the newest token of a sequence.

        The length of a draft depends on measured times. Where a pass over several tokens is not bitwise equal to single
        ones, sequences with a seed have no drafts, because a seed asks for the same tokens again.
        """
        is_free = not self.abilities.why_not_exact or sequence.request.sampling.seed is None
        return self.abilities.drafts and is_free

    def reserved(self, maximum: int) -> KvBudget:
        """Part of the KV cache that low-priority sequences must leave free.

        That part holds the most recently used cached prefixes, at most `maximum` of them.
        """
        return NOTHING_RESERVED

    def is_long(self, sequence: Sequence) -> bool:
        """Whether a sequence is so long that it needs the long factors of the rope."""
        return self.switches_at is not None and len(sequence.tokens) > self.switches_at

    def must_reopen(self, sequence: Sequence) -> bool:
        """Whether a sequence must be closed, opened and read again, because it now needs the long rope factors."""
        return False

    def match_again(self, sequence: Sequence) -> int:
        """Search again for a cached prefix before a prompt's first chunk. Returns the number of cached tokens.

        Other sequences may have read the same beginning since `open`.
        """
        return sequence.num_read

    def accept(self, sequence: int, tokens: abc.Sequence[int]) -> None:
        """Count the first tokens of the draft in a sequence's last pass as read. `tokens` are these accepted tokens."""
        raise RunnerFailed("this runner takes no drafts")

    def forget(self) -> int:
        """Drop all cached prefixes of ended sequences. Returns the number of prefixes."""
        return 0

    def load_adapter(self, path: Path) -> Any:
        """Load an adapter for the sequences of this runner. Raises AdapterLoadFailed.

        Returns the runner's representation of the adapter, whose memory is freed with the last reference.
        """
        raise AdapterLoadFailed("this model takes no adapters")

    def _adapter(self, sequence: Sequence) -> Any:
        """The runner's representation of a sequence's adapter; None without an adapter."""
        return None if sequence.adapter is None else sequence.adapter.loaded

    def set_runtime_option(self, sequence: int, option: str, value: str) -> None:
        """Set a runtime option of onnxruntime-genai for a sequence.

        `enable_profiling` takes "0" or the path prefix of the files. Only passes with no other sequence are profiled.
        """
        raise RunnerFailed(f"this runner has no runtime option {option}")

    def interrupt(self) -> None:
        """Interrupt the pass in progress, or the next one, if that is possible. Any thread may call this."""
        self._is_interrupted = True
        if (options := self._interruptible) is not None:
            options.terminate = True

    def lapse(self) -> None:
        """Discard an interrupt that no pass has noticed."""
        self._is_interrupted = False

    def _allow_interrupts(self, options: Any) -> None:
        """Let `interrupt` end the pass that runs with these ONNX Runtime run options."""
        self._interruptible = options
        if self._is_interrupted:
            options.terminate = True

    def end_session(self) -> None:  # noqa: B027 - not every runner has one
        """End the model's session, so that ONNX Runtime writes the session's profile. No other call may follow."""


def run_pass(runner: Runner, chunks: abc.Sequence[ScheduledChunk]) -> list[Scores]:
    """Run a pass, and count the tokens that it has read. If the runner raises an error, nothing is counted."""
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
    """Start a sequence without a client that can grow to `max_length` tokens.

    `fields` are further fields of the sequence's GenerationRequest. `reuses_past` says whether a cached prefix may be
    reused.
    """
    request = GenerationRequest("", prompt, max(0, max_length - len(prompt)), max_length, **fields)
    number = next(_IDS) if id is None else id
    sequence = Sequence(number, (0, 0), request, lambda: 0.0, adapter=adapter, reuses_past=reuses_past)
    sequence.num_read = runner.open(sequence)
    return sequence


def read_all(runner: Runner, sequences: abc.Sequence[Sequence]) -> list[Scores]:
    """Read all unread tokens of some sequences in one pass. Raises RunnerFailed."""
    return run_pass(runner, [ScheduledChunk.next(one, one.num_unread, texts=one.request.texts) for one in sequences])


def try_pass(runner: Runner) -> None:
    """Read a short text in a sequence without a client. Raises what the runner raises."""
    texts = [PooledText(_SHORT)] if runner.abilities.pools else []
    sequence = open_bare(runner, [1 % runner.model.vocab_size] * _SHORT, 2 * _SHORT, texts=texts)
    try:
        read_all(runner, [sequence])
    finally:
        runner.close(sequence.id)
