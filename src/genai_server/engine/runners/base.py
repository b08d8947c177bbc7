"""The interface of runners, the objects that run a model's forward passes for the engine's loop.

`Runner` is the base class; its subclasses run sequences together in a batch (batched.py), one by one with
onnxruntime-genai (og_generator.py), compute embeddings (pooled.py), or need no model (scripted.py). For warm-up and
measurements, `open_bare`, `read_all` and `try_pass` run sequences that no client has requested.
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
    """Raised by a forward pass of a sequence whose session an operator has ended with the runtime option
    terminate_session.
    """


class Interrupted(Exception):
    """Raised by a forward pass that `Runner.interrupt` has ended early. None of the pass's tokens count as read, so the
    same pass can be run again.
    """


class Runner(ABC):
    """Runs the forward passes of a model for sequences of tokens. An engine creates its runners when it loads its
    model. Only the thread of the engine's loop uses them, but any thread may call `interrupt`.

    Each sequence must be opened before its first pass and closed after its last one. `abilities` says what the runner
    can do, for instance whether a pass can read several sequences. Methods for optional abilities have a default here,
    which does nothing or refuses. Every method except `close` may raise RunnerFailed, which affects only the sequences
    of that call.
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
        """Number of nodes of the model's graph that each execution provider runs, by the provider's name; None where
        the number is unknown. Empty for a runner that has no graph.
        """
        return {}

    @abstractmethod
    def open(self, sequence: Sequence) -> int:
        """Prepare a sequence to run, for instance by assigning a KV cache slot to it. Returns how many of its tokens
        need not be read, because they are in a cached prefix. Raises RunnerFailed.
        """

    @abstractmethod
    def forward(self, chunks: abc.Sequence[ScheduledChunk]) -> list[Scores]:
        """Run one forward pass that reads the tokens in `chunks`, each of which has the next tokens of another
        sequence. Returns the scores (logits or vectors) of each chunk, in order.

        If the runner's abilities have `mixes`, a pass has at most `max_rows` chunks, each with any number of tokens.
        Otherwise it has either chunks that decode, or a single chunk of a prompt. If the abilities have `drafts`,
        chunks that decode may end with draft tokens.

        Draft tokens do not count as read, except those that are passed to `accept` before the next pass. The next pass
        may overwrite the returned arrays. Raises Interrupted, RunnerFailed and, if the pass has one sequence,
        Terminated.
        """

    @abstractmethod
    def close(self, sequence: int) -> None:
        """End the sequence with the id `sequence` on this runner, and free its memory. Does nothing
        for an unknown id.
        """

    def check(self, request: GenerationRequest) -> None:
        """Check that this runner can run a request. Raises InvalidField, which names the field of the request, if it
        cannot.
        """
        if self.abilities.pools != bool(request.texts):
            wanted = "texts to pool" if self.abilities.pools else "a prompt to continue"
            raise InvalidField("model", f"takes {wanted}")
        if request.exact and (why := self.abilities.why_not_exact):
            raise InvalidField("exact", f"is not supported with this model here: {why}")

    def fit_chunk(self, sequence: Sequence, maximum: int) -> int:
        """Return how many unread prompt tokens of a sequence the next pass should read, if there is room for `maximum`
        tokens in the pass.

        The result is usually at most `maximum`. It is `maximum + 1` if a single token of the prompt would otherwise be
        left for another pass, because the kernels for one token may round differently. An `og.Generator` reads some
        prompts in one pass, whatever `maximum` is: prompts that need the long rope factors, because their first chunks
        would get the short factors, and prompts with images or audio, which onnxruntime-genai accepts only together
        with the first tokens.
        """
        # The last produced token is left to a pass of its own, from which the sequence decodes as before.
        num_left = sequence.num_unread - (1 if sequence.num_produced else 0)
        has_inputs = sequence.images is not None or sequence.audio is not None
        if not sequence.batched and (self.is_long(sequence) or has_inputs):
            return max(1, num_left)
        return num_left if num_left <= maximum + 1 else maximum

    def may_draft(self, sequence: Sequence) -> bool:
        """Whether the next pass may read draft tokens for speculative decoding after the newest token of a sequence.

        False if the runner cannot verify drafts. Also False for a sequence with a seed if a pass over several tokens
        rounds differently than passes over single tokens: the length of a draft depends on measured times, so the
        answer would not be reproducible.
        """
        is_free = not self.abilities.why_not_exact or sequence.request.sampling.seed is None
        return self.abilities.drafts and is_free

    def reserved(self, maximum: int) -> KvBudget:
        """Return how much of the KV cache low-priority sequences must leave free, as numbers of slots and pages.

        This part has the most recently used cached prefixes of normal priority, of which at most `maximum` are
        protected in this way.
        """
        return NOTHING_RESERVED

    def is_long(self, sequence: Sequence) -> bool:
        """Whether a sequence has so many tokens that it needs the long factors of the model's rope (rotary position
        embedding). False for models whose rope does not have short and long factors.
        """
        return self.switches_at is not None and len(sequence.tokens) > self.switches_at

    def must_reopen(self, sequence: Sequence) -> bool:
        """Whether a running sequence has become so long that it needs the long factors of the model's rope (rotary
        position embedding). The caller must then close and open it again, so that all its tokens are read again with
        these factors.
        """
        return False

    def match_again(self, sequence: Sequence) -> int:
        """Search the prefix cache again for the beginning of a sequence's prompt, before its first chunk is read,
        because other sequences may have read the same beginning since `open`. Returns how many tokens of the prompt are
        cached now.
        """
        return sequence.num_read

    def accept(self, sequence: int, tokens: abc.Sequence[int]) -> None:
        """Count draft tokens of the last pass as read, because they were verified and belong to the answer.

        `tokens` are the accepted tokens: the beginning of the draft that the sequence with the id `sequence` had in the
        last pass. Raises RunnerFailed if the runner takes no drafts.
        """
        raise RunnerFailed("this runner takes no drafts")

    def forget(self) -> int:
        """Drop the cached prefixes of all ended sequences. Returns how many prefixes were dropped."""
        return 0

    def load_adapter(self, path: Path) -> Any:
        """Load the LoRA adapter file at `path`, so that sequences of this runner can use it.

        Returns an object that is only for this runner, which finds it in `Sequence.adapter`. The adapter's memory is
        freed when the object is no longer referenced. Raises AdapterLoadFailed if the file does not match the model, or
        the runner takes no adapters.
        """
        raise AdapterLoadFailed("this model takes no adapters")

    def _adapter(self, sequence: Sequence) -> Any:
        """Return the object that `load_adapter` has returned for the adapter of a sequence; None if the sequence has no
        adapter.
        """
        return None if sequence.adapter is None else sequence.adapter.loaded

    def set_runtime_option(self, sequence: int, option: str, value: str) -> None:
        """Set a runtime option of onnxruntime-genai, `terminate_session` or `enable_profiling`, for the sequence with
        the id `sequence`.

        The value for `enable_profiling` is "0" to stop profiling, or the path prefix of the files with profiles. A pass
        is profiled only if it reads no other sequence. Raises RunnerFailed if the runner does not have the option.
        """
        raise RunnerFailed(f"this runner has no runtime option {option}")

    def interrupt(self) -> None:
        """Make the forward pass in progress end early with the exception Interrupted. If no pass is in progress, the
        next pass ends in this way. Passes that the runner does not allow to be interrupted run to their end. Any thread
        may call this.
        """
        self._is_interrupted = True
        if (options := self._interruptible) is not None:
            options.terminate = True

    def cancel_interrupt(self) -> None:
        """Withdraw a call of `interrupt` that has not ended any pass yet, so that the next pass runs as usual."""
        self._is_interrupted = False

    def _allow_interrupts(self, options: Any) -> None:
        """Allow `interrupt` to end the pass that runs with `options`, run options of ONNX Runtime. Subclasses call this
        before a pass.
        """
        self._interruptible = options
        if self._is_interrupted:
            options.terminate = True

    def end_session(self) -> None:  # noqa: B027 - not every runner has one
        """Close the ONNX Runtime session of the model, so that ONNX Runtime writes the profile of the whole session to
        a file. No other method may be called afterwards.
        """


def run_pass(runner: Runner, chunks: abc.Sequence[ScheduledChunk]) -> list[Scores]:
    """Run a forward pass of `chunks`, and count their tokens as read in the chunks' sequences. Returns the scores of
    each chunk. If the runner raises an error, it is raised unchanged and nothing is counted.
    """
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
    """Create a sequence that no client has requested, for warm-up, measurements and draft models, and open it on
    `runner`. The caller must close it.

    `prompt` has token ids, and the sequence may grow to `max_length` tokens. `id` is the sequence's id; None stands for
    a new negative one. `reuses_past` says whether the sequence may begin with a cached prefix, `adapter` is its LoRA
    adapter, and `fields` are further fields of its GenerationRequest. Raises the runner's error if it cannot be opened.
    """
    request = GenerationRequest("", prompt, max(0, max_length - len(prompt)), max_length, **fields)
    number = next(_IDS) if id is None else id
    sequence = Sequence(number, (0, 0), request, lambda: 0.0, adapter=adapter, reuses_past=reuses_past)
    sequence.num_read = runner.open(sequence)
    return sequence


def read_all(runner: Runner, sequences: abc.Sequence[Sequence]) -> list[Scores]:
    """Read all unread tokens of several opened sequences in one forward pass. Returns the scores of each sequence.
    Raises RunnerFailed.
    """
    return run_pass(
        runner,
        [ScheduledChunk.next(sequence, sequence.num_unread, texts=sequence.request.texts) for sequence in sequences],
    )


def try_pass(runner: Runner) -> None:
    """Test whether a runner works: read a prompt (or, with a model for embeddings, a text) of two tokens in a sequence
    of its own, which is closed afterwards. Raises the runner's error if the pass fails.
    """
    texts = [PooledText(_SHORT)] if runner.abilities.pools else []
    sequence = open_bare(runner, [1 % runner.model.vocab_size] * _SHORT, 2 * _SHORT, texts=texts)
    try:
        read_all(runner, [sequence])
    finally:
        runner.close(sequence.id)
