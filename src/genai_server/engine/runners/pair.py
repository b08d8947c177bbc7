"""The two runners of an engine: the batched one for speed, onnxruntime-genai's Generator for its runtime options and
its adapters.

A sequence can change over in the middle of its answer. A Generator takes no foreign cache, so on the way in it reads
the sequence's tokens anew; on the way back its keys and values are copied into a slot.
"""

from collections.abc import Mapping
from types import MappingProxyType

from genai_server.engine.adapters import Adapters
from genai_server.engine.outcome import num_choices
from genai_server.engine.runners.base import Batch, ExportingRunner, Opening, Runner
from genai_server.engine.runners.scores import Scores
from genai_server.engine.scheduler import Pass
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
        self._no_generator = ""
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
        return Batching(self.batched.name, None, self.batched.max_rows, self.batched.lone_row_is_exact, self._nodes)

    def forget(self) -> int:
        """Forget the past of all sequences that have ended; returns how many slots had one."""
        return 0 if self.batched is None else self.batched.forget()

    def open(self, sequence: Sequence) -> None:
        """Begin a sequence. Raises RunnerFailed."""
        fits_the_batch = sequence.profile == "0" and sequence.adapter is None
        self._open_on(sequence, batched=self.batched is not None and fits_the_batch)

    def check(self, request: GenerationRequest) -> None:
        """Raises InvalidField for what a request wants and cannot have where it would run."""
        if self.batched is not None and request.adapter is None:
            self.batched.check(request)

    def no_profile(self, *sequences: Sequence) -> str | None:
        """Why these sequences, or any at all, may not go over to a Generator, where each runs alone."""
        if self._no_generator:
            return f"this model's answers cannot be profiled, for it runs in a batch only: {self._no_generator}"
        beside = [s for s in sequences if self.batched is not None and s.adapter is None]
        if any(s.request.exact for s in beside) and self.batched is not None and not self.batched.lone_row_is_exact:
            return NOT_EXACT
        return None

    def do_without_generator(self, reason: str) -> None:
        """The model runs in the batch only."""
        self._no_generator = reason

    def forward(self, step: Pass) -> list[Scores]:
        """Run a pass; returns what it tells of each sequence.

        Of a sequence that wants the positions of its prompt these are the logits after each of the tokens. The
        sequences' `num_read` goes on only if it succeeds. Raises what runners raise.
        """
        runner = self._runner(step.sequences[0])
        reading = [s.tokens[s.num_read : s.num_read + step.num_tokens] for s in step.sequences]
        if step.sequences[0].is_prefilling:
            (sequence,) = step.sequences
            logits = runner.prefill(sequence.id, reading[0], positions=sequence.wants_positions)
            scores = [Scores(logits.reshape(-1, logits.shape[-1]))]
        else:
            ids, tokens = [s.id for s in step.sequences], [tokens[0] for tokens in reading]
            if self.batched is not None and runner is self.batched:
                scores = self.batched.advance(ids, tokens, map(num_choices, step.sequences))
            else:
                scores = [Scores(row[None]) for row in runner.decode(ids, tokens)]
        for sequence, read, found in zip(step.sequences, reading, scores, strict=True):
            sequence.num_read += 0 if found.is_pending else len(read)
        return scores

    def to_generator(self, sequence: Sequence) -> None:
        """Go on where runtime options work; the sequence's tokens are read anew, pass by pass."""
        if sequence.batched:
            self.close(sequence)
            self._open_on(sequence, batched=False)
            sequence.active_profile = "0"

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
        self.batched.adopt(sequence.id, read, num_prefilled, past, exact=sequence.request.exact)
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
        reuse = request.cache_prompt and not request.prompt_logprobs
        how = Opening(sequence.max_length, reuse=reuse, exact=request.exact, adapter=sequence.adapter, request=request)
        # What an exact sequence has decoded must not come from a prompt that has the same tokens: they round otherwise.
        past = request.prompt if request.exact else sequence.tokens
        sequence.num_read = self._runner(sequence).open(sequence.id, past, how)
        if not sequence.num_produced:
            sequence.num_cached = 0 if sequence.by_library else sequence.num_read
