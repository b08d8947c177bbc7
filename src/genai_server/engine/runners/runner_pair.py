"""The two runners of an engine.

The batched runner is there for speed, onnxruntime-genai's Generator for its runtime options and adapters. A sequence
can move between them in the middle of its answer. A Generator cannot take over keys and values, so it reads the
sequence's tokens again. On the way back, its keys and values are copied into a KV cache slot.
"""

import logging
from collections.abc import Mapping
from collections.abc import Sequence as Several
from types import MappingProxyType

from genai_server.engine.kv_memory import UNSHARED, KvMemory
from genai_server.engine.model.adapters import Adapters
from genai_server.engine.runners.base import Batch, ExportingRunner, Opening, Row, Runner
from genai_server.engine.runners.kv_events import KvEventPublisher
from genai_server.engine.runners.scores import Scores
from genai_server.engine.sampling.next_token import num_choices
from genai_server.engine.scheduling.step import Read, Step
from genai_server.engine.sequence import Sequence
from genai_server.errors import InvalidField
from genai_server.generation import Batching, GenerationRequest, ModelInfo
from genai_server.messages.kv_events import KvEventTarget

log = logging.getLogger(__name__)

NOT_EXACT = (
    "an exact request cannot be profiled with this model: profiled requests run alone, "
    "and a row alone is not bitwise equal to a row in a batch"
)


class RunnerPair:
    """Chooses the runner of each sequence. Without a batched runner, all sequences run on the generator's."""

    def __init__(
        self,
        generator: ExportingRunner,
        batched: Batch | None = None,
        *,
        reason: str | None = None,
        nodes: Mapping[str, int | None] = MappingProxyType({}),
        pools: bool = False,
    ) -> None:
        self.pools = pools  # whether requests have texts to pool, rather than a prompt to continue
        self.generator = generator
        self.batched = batched
        self.adapters = Adapters(generator)  # sequences with an adapter stay on the generator's runner
        self._reason = reason  # why there is no batched runner
        # Why no sequence can be profiled; empty if sequences can.
        self._no_profile = "a model for embeddings or reranking cannot be profiled" if pools else ""
        self._kv_events: KvEventPublisher | None = None
        self._nodes = dict(nodes)  # nodes of the graph by provider; None where the number is unknown

    @property
    def model(self) -> ModelInfo:
        """The model, as the runner of most requests describes it."""
        return (self.batched or self.generator).model

    @property
    def batching(self) -> Batching:
        """How requests are batched, for the API processes."""
        if self.batched is None:
            return Batching("pooled" if self.pools else "generator", self._reason, nodes=self._nodes)
        return Batching(
            self.batched.name,
            None,
            self.batched.max_rows,
            self.batched.lone_row_is_exact,
            self._nodes,
            self.batched.mixes,
            self.batched.int8_from,
            self.memory.num_tokens(self.batched.max_rows),
        )

    @property
    def memory(self) -> KvMemory:
        """The memory that the batch's sequences share."""
        return UNSHARED if self.batched is None else self.batched.memory

    def forget(self) -> int:
        """Drop all cached prefixes of ended sequences; returns how many slots had one."""
        return 0 if self.batched is None else self.batched.forget()

    def publish_cache(self, target: KvEventTarget) -> None:
        """Publish which blocks the prefix cache holds, if there is one. Raises ConfigurationError."""
        slots = None if self.batched is None else self.batched.slots
        if slots is None:
            log.warning("GENAI_KV_EVENTS has no effect: this model has no prefix cache (%s)", self.batching.scheduler)
            return
        self._kv_events = KvEventPublisher(target, slots.slots)

    def publish_cache_changes(self) -> None:
        """Publish what the last step has changed in the prefix cache, if that is wanted."""
        if self._kv_events is not None:
            self._kv_events.publish()

    def open(self, sequence: Sequence) -> None:
        """Begin a sequence. Raises RunnerFailed."""
        fits_the_batch = not sequence.profile.is_on and sequence.adapter is None
        self._open_on(sequence, batched=self.batched is not None and fits_the_batch)

    @property
    def mixes(self) -> bool:
        """Whether a pass may decode and read a chunk of a prompt."""
        return self.batched is not None and self.batched.mixes

    @property
    def verifies(self) -> bool:
        """Whether a pass of a lone sequence may read a draft."""
        return self.batched is not None and self.batched.verifies

    def match_again(self, sequence: Sequence) -> int:
        """Look for a longer cached prefix of an unread prompt; returns how many more tokens it has."""
        if self.batched is None or not sequence.batched or not self.reuses_past(sequence.request):
            return 0
        found = self.batched.match_again(sequence.id, sequence.request.prompt) - sequence.num_read
        sequence.num_read += found
        sequence.num_cached += found
        return found

    def check(self, request: GenerationRequest) -> None:
        """Raises InvalidField for a field of a request which its runner does not support."""
        if self.pools != bool(request.texts):
            wanted = "texts to pool" if self.pools else "a prompt to continue"
            raise InvalidField(f"this model takes {wanted}", param="model")
        if self.batched is not None and request.adapter is None:
            self.batched.check(request)

    def reuses_past(self, request: GenerationRequest) -> bool:
        """Whether a request may reuse a cached prefix."""
        in_slots = self.batched is not None and not self.batched.chooses and request.adapter is None
        return in_slots and request.cache_prompt and not request.prompt_logprobs

    def no_profile(self, *sequences: Sequence) -> str | None:
        """Why these sequences cannot move to a Generator, where each runs alone; None if they can."""
        if self._no_profile:
            return self._no_profile
        beside = [s for s in sequences if self.batched is not None and s.adapter is None]
        if any(s.request.exact for s in beside) and self.batched is not None and not self.batched.lone_row_is_exact:
            return NOT_EXACT
        return None

    def do_without_generator(self, reason: str) -> None:
        """Refuse profiles because the model runs in the batch only."""
        self._no_profile = f"this model's answers cannot be profiled, because it runs in a batch only: {reason}"

    def do_without_profiles(self, reason: str) -> None:
        """Refuse profiles because ONNX Runtime cannot write them."""
        self._no_profile = f"answers cannot be profiled: {reason}"

    def forward(self, step: Step) -> list[Scores]:
        """Run a pass; returns the scores of each sequence.

        A sequence which wants its prompt's positions gets the logits after each token. `num_read` of the sequences
        grows only if the pass succeeds. Raises what runners raise.
        """
        rows = [_row(read) for read in step.reads]
        scores = self._runner(step.reads[0].sequence).forward(rows)
        for read, row, found in zip(step.reads, rows, scores, strict=True):
            read.sequence.num_read += 0 if found.is_pending else len(row.tokens) - len(read.draft)
            read.sequence.num_texts += len(read.texts)
        return scores

    def accept(self, sequence: Sequence, tokens: Several[int]) -> None:
        """Count the first tokens of the draft as read that the sequence's last pass had."""
        assert self.batched is not None
        self.batched.accept(sequence.id, tokens)
        sequence.num_read += len(tokens)

    def to_generator(self, sequence: Sequence) -> None:
        """Move a sequence to the generator, where runtime options work. Its tokens are read again, in chunks."""
        if sequence.batched:
            self.close(sequence)
            self._open_on(sequence, batched=False)

    def to_batch(self, sequence: Sequence) -> None:
        """Move a sequence to the batch, with the generator's keys and values if it has kept them all."""
        if sequence.batched or self.batched is None or sequence.adapter is not None:
            return
        if self.batched.chooses and sequence.num_produced:
            return  # its sampling would not continue the same way, and a grammar would start again
        if not self.batched.takes_past:
            self.close(sequence)
            self._open_on(sequence, batched=True)
            return
        read = sequence.tokens[: sequence.num_read]
        past = self.generator.export(sequence.id, self.batched.present_names) if read else {}
        self.close(sequence)
        prompt = sequence.request.prompt
        num_prefilled = min(len(read), len(prompt)) if len(prompt) > 1 else 0
        request = sequence.request
        self.batched.adopt(sequence.id, read, num_prefilled, past, exact=request.exact, salt=request.cache_salt)
        sequence.batched = True

    def set_runtime_option(self, sequence: Sequence, option: str, value: str) -> None:
        """Set an option of a sequence on the generator's runner."""
        self.generator.set_runtime_option(sequence.id, option, value)

    def interrupt(self) -> None:
        """End the pass in progress, if its runner can. Any thread may call this."""
        if self.batched is not None:
            self.batched.interrupt()

    def end_sessions(self) -> None:
        """End the model's sessions. No other call follows."""
        self.generator.end_session()
        if self.batched is not None:
            self.batched.end_session()

    def close(self, sequence: Sequence) -> None:
        """End a sequence and free what it holds."""
        self._runner(sequence).close(sequence.id)

    def _runner(self, sequence: Sequence) -> Runner:
        return self.batched if sequence.batched and self.batched is not None else self.generator

    def _open_on(self, sequence: Sequence, *, batched: bool) -> None:
        sequence.batched = batched
        sequence.by_library = batched and self.batched is not None and self.batched.chooses
        request = sequence.request
        reuse = self.reuses_past(request)
        how = Opening(
            sequence.max_length,
            reuse=reuse,
            salt=request.cache_salt,
            exact=request.exact,
            adapter=sequence.adapter,
            request=request,
        )
        # Decoded tokens of an exact sequence must not match another's prompt: decode and prefill are not bitwise equal.
        past = request.prompt if request.exact else sequence.tokens
        sequence.num_read = self._runner(sequence).open(sequence.id, past, how)
        if not sequence.num_produced:
            sequence.num_cached = 0 if sequence.by_library else sequence.num_read


def _row(read: Read) -> Row:
    sequence = read.sequence
    num_own = read.num_tokens - len(read.draft)
    tokens = [*sequence.tokens[sequence.num_read : sequence.num_read + num_own], *read.draft]
    return Row(sequence.id, tokens, read.decodes, sequence.wants_positions, num_choices(sequence), read.texts)
