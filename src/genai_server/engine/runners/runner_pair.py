"""The two runners of an engine: the batched one for speed, onnxruntime-genai's Generator for its runtime options and
its adapters.

A sequence can change over in the middle of its answer. A Generator takes no foreign cache, so on the way in it reads
the sequence's tokens anew; on the way back its keys and values are copied into a slot.
"""

from collections.abc import Mapping
from types import MappingProxyType

from genai_server.engine.model.adapters import Adapters
from genai_server.engine.runners.base import Batch, ExportingRunner, Opening, Row, Runner
from genai_server.engine.runners.scores import Scores
from genai_server.engine.sampling.next_token import num_choices
from genai_server.engine.scheduling.scheduler import Read, Step
from genai_server.engine.sequence import Sequence
from genai_server.generation import Batching, GenerationRequest, ModelInfo

NOT_EXACT = "an exact request cannot be profiled with this model: alone, as it would run, a row rounds otherwise"


class RunnerPair:
    """Where each sequence runs. Without a batched runner, for the reason given, all are on the generator's.

    `adapters` are those that requests bring; sequences with one are on the generator's for good. `nodes` are those of
    the graph by the provider that runs them, as far as it is known.
    """

    def __init__(
        self,
        generator: ExportingRunner,
        batched: Batch | None = None,
        *,
        reason: str | None = None,
        nodes: Mapping[str, int | None] = MappingProxyType({}),
    ) -> None:
        self.generator = generator
        self.batched = batched
        self.adapters = Adapters(generator)
        self._reason = reason
        self._no_profile = ""
        self._nodes = dict(nodes)

    @property
    def model(self) -> ModelInfo:
        """The model, as it is where most requests run."""
        return (self.batched or self.generator).model

    @property
    def batching(self) -> Batching:
        """What the API processes tell of it."""
        if self.batched is None:
            return Batching(reason=self._reason, nodes=self._nodes)
        return Batching(
            self.batched.name,
            None,
            self.batched.max_rows,
            self.batched.lone_row_is_exact,
            self._nodes,
            self.batched.mixes,
            self.batched.int8_from,
        )

    def forget(self) -> int:
        """Forget the past of all sequences that have ended; returns how many slots had one."""
        return 0 if self.batched is None else self.batched.forget()

    def open(self, sequence: Sequence) -> None:
        """Begin a sequence. Raises RunnerFailed."""
        fits_the_batch = not sequence.profile.is_on and sequence.adapter is None
        self._open_on(sequence, batched=self.batched is not None and fits_the_batch)

    @property
    def mixes(self) -> bool:
        """Whether a pass may decode and read a chunk of a prompt."""
        return self.batched is not None and self.batched.mixes

    def match_again(self, sequence: Sequence) -> int:
        """Find more of an unread prompt in the cache; returns how many tokens were found beyond those of before."""
        if self.batched is None or not sequence.batched or not self.reuses_past(sequence.request):
            return 0
        found = self.batched.match_again(sequence.id, sequence.request.prompt) - sequence.num_read
        sequence.num_read += found
        sequence.num_cached += found
        return found

    def check(self, request: GenerationRequest) -> None:
        """Raises InvalidField for what a request wants and cannot have where it would run."""
        if self.batched is not None and request.adapter is None:
            self.batched.check(request)

    def reuses_past(self, request: GenerationRequest) -> bool:
        """Whether the keys and values of another prompt that begins alike are used again for a request."""
        in_slots = self.batched is not None and not self.batched.chooses and request.adapter is None
        return in_slots and request.cache_prompt and not request.prompt_logprobs

    def no_profile(self, *sequences: Sequence) -> str | None:
        """Why these sequences, or any at all, may not go over to a Generator, where each runs alone."""
        if self._no_profile:
            return self._no_profile
        beside = [s for s in sequences if self.batched is not None and s.adapter is None]
        if any(s.request.exact for s in beside) and self.batched is not None and not self.batched.lone_row_is_exact:
            return NOT_EXACT
        return None

    def do_without_generator(self, reason: str) -> None:
        """The model runs in the batch only."""
        self._no_profile = f"this model's answers cannot be profiled, for it runs in a batch only: {reason}"

    def do_without_profiles(self, reason: str) -> None:
        """The installed libraries make none."""
        self._no_profile = f"answers cannot be profiled with the installed libraries: {reason}"

    def forward(self, step: Step) -> list[Scores]:
        """Run a pass; returns what it tells of each sequence.

        Of a sequence that wants the positions of its prompt these are the logits after each of the tokens. The
        sequences' `num_read` goes on only if it succeeds. Raises what runners raise.
        """
        rows = [_row(read) for read in step.reads]
        scores = self._runner(step.reads[0].sequence).forward(rows)
        for read, row, found in zip(step.reads, rows, scores, strict=True):
            read.sequence.num_read += 0 if found.is_pending else len(row.tokens)
        return scores

    def to_generator(self, sequence: Sequence) -> None:
        """Go on where runtime options work; the sequence's tokens are read anew, pass by pass."""
        if sequence.batched:
            self.close(sequence)
            self._open_on(sequence, batched=False)

    def to_batch(self, sequence: Sequence) -> None:
        """Go on in the batch, with the keys and values that the generator has if it has kept them all."""
        if sequence.batched or self.batched is None or sequence.adapter is not None:
            return
        if self.batched.chooses and sequence.num_produced:
            return  # it would not go on with the same choice, and a grammar would begin anew
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
        """Set an option of a sequence that is on the generator's runner."""
        self.generator.set_runtime_option(sequence.id, option, value)

    def interrupt(self) -> None:
        """End the pass that runs now, if it can be; any thread may call it."""
        if self.batched is not None:
            self.batched.interrupt()

    def end_sessions(self) -> None:
        """End the model's sessions; nothing runs any more."""
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
        # What an exact sequence has decoded must not come from a prompt that has the same tokens: they round otherwise.
        past = request.prompt if request.exact else sequence.tokens
        sequence.num_read = self._runner(sequence).open(sequence.id, past, how)
        if not sequence.num_produced:
            sequence.num_cached = 0 if sequence.by_library else sequence.num_read


def _row(read: Read) -> Row:
    sequence = read.sequence
    tokens = sequence.tokens[sequence.num_read : sequence.num_read + read.num_tokens]
    return Row(sequence.id, tokens, read.decodes, sequence.wants_positions, num_choices(sequence))
