"""The runner over onnxruntime-genai's own batching, `og.Engine`, which models with paged attention are made for.

The library reads prompts and chooses tokens itself, and gives no logits. So some fields of requests are not
supported here. Each sequence has one request of the library's, with one turn. The turn's input is the prompt, and each
run of the engine brings a token for every turn whose prompt has been read.

With paged attention, on GPUs, the library batches dynamically: a new turn joins the running ones. Elsewhere it forms
batches of at most four turns, and later turns wait until all of a batch has ended.
"""

import json
import logging
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from msgspec import structs

from genai_server.engine.abilities import Abilities
from genai_server.engine.runners.base import Runner
from genai_server.engine.runners.og_generator import OgGeneratorRunner
from genai_server.engine.scheduling.scheduler_output import Read
from genai_server.engine.scores import Scores
from genai_server.engine.sequence import Sequence as Scheduled
from genai_server.errors import InvalidField, RunnerFailed
from genai_server.messages.generation_request import GenerationRequest

log = logging.getLogger(__name__)
# After this many runs in a row without a token, because KV cache memory is full, one turn is ended.
_MAX_BLOCKED = 100

# The llguidance in onnxruntime-genai 0.18 is older than ours, and refuses this option of schemas. Without the option,
# strings in an answer may have other JSON escapes, too.
_NEWER_OPTION = re.compile(r'("key_separator": ": "), "json_allowed_escapes": "(?:[^"\\]|\\.)*"')


@dataclass
class Turn:
    """The library's turn for a sequence."""

    # The library's request; None once it is closed, or its engine has been replaced.
    request: Any = None
    # The turn's number within the request.
    number: int = 0
    # Tokens which the library has brought and the loop has not taken yet.
    tokens: deque[int] = field(default_factory=deque)
    # Whether the answer ends after `tokens`.
    has_ended: bool = False
    # Why the turn failed after `tokens`; empty if it did not.
    failure: str = ""

    @property
    def is_ready(self) -> bool:
        """Whether `forward` would give a result without running the engine."""
        return bool(self.tokens) or self.has_ended or bool(self.failure)


class OgEngineRunner(Runner):
    """At most `max_rows` sequences on the model that an OgGeneratorRunner has loaded.

    A failed engine is replaced, and all its turns fail. Raises SystemExit if it cannot be replaced: a new process may
    have the memory.
    """

    def __init__(self, generator: OgGeneratorRunner, max_rows: int) -> None:
        self._generator = generator
        self._library = generator.library
        self._turns: dict[int, Turn] = {}
        self._blocked = 0
        self._start()
        capabilities = self._engine.get_capabilities()
        self.abilities = Abilities(
            "library",
            min(max_rows, int(capabilities.configured_max_batch_size)),
            chooses=True,
            why_not_exact="its answers come from onnxruntime-genai's own batch, which rounds differently in company",
        )
        # 0 for static batching, which has no limits of its own and no seeds.
        self._is_dynamic = capabilities.max_scheduled_tokens > 0
        model = generator.model
        # The context is limited to what the library's pages hold of one sequence.
        self.model = structs.replace(
            model,
            context_length=min(model.context_length, capabilities.max_request_length or model.context_length),
            defaults=structs.replace(model.defaults, min_p=0.0),  # the model's default is not supported here
        )

    @property
    def nodes(self) -> Mapping[str, int | None]:
        return self._generator.nodes

    def check(self, request: GenerationRequest) -> None:
        super().check(request)
        sampling = request.sampling
        asked = {
            "logprobs": request.top_logprobs is not None or request.prompt_logprobs,
            "logit_bias": bool(sampling.logit_bias),
            "allowed_token_ids": bool(sampling.allowed_tokens),
            "bad_words": bool(sampling.bad_words),
            "frequency_penalty": sampling.frequency_penalty != 0.0,
            "presence_penalty": sampling.presence_penalty != 0.0,
            "repeat_last_n": 0 <= sampling.repeat_last_n < request.max_length and sampling.penalizes,
            "min_p": sampling.min_p != 0.0 and sampling.temperature != 0.0,
            "seed": sampling.seed is not None and sampling.temperature != 0.0 and not self._is_dynamic,
        }
        for name, is_asked in asked.items():
            if is_asked:
                raise InvalidField(
                    name,
                    "is not supported on this device: its answers come from onnxruntime-genai's own batch, which has "
                    "none",
                )
        if request.grammar is not None:
            _guidance(request.grammar)

    def open(self, sequence: Scheduled) -> int:
        """Begin the sequence's turn. Raises InvalidField if the library refuses the request's options.

        To the library, what was produced before a pause is part of the prompt.
        """
        prompt, num_produced = sequence.tokens, sequence.num_produced
        most = sequence.num_left
        turn = self._turns[sequence.id] = Turn(has_ended=most == 0)  # the library takes 0 as no limit
        if most:
            options = self._library.RequestOptions()
            options.set_max_session_tokens(sequence.max_length)
            try:
                turn.request = self._engine.create_request(options=options)
                chosen = self._options(turn.request, sequence.request, most, num_produced)
                turn.number = turn.request.begin_turn(np.array(prompt, np.int32), chosen)
            except RuntimeError as error:
                raise InvalidField(None, f"onnxruntime-genai does not take the request: {error}") from None
        return len(prompt) - 1

    def forward(self, reads: Sequence[Read]) -> list[Scores]:
        """The next token or the failure of each sequence, whatever the tokens of the reads are.

        The engine runs once, and only if no sequence has a result already. Sequences whose prompts are still being
        read, or which wait for memory, may be pending.
        """
        if any(read.positions for read in reads):
            raise RunnerFailed("onnxruntime-genai's own batch tells no logits of a prompt")
        turns = [self._turns[read.sequence.id] for read in reads]
        if not any(turn.is_ready for turn in turns):
            self._run()
        return [self._scores(turn) for turn in turns]

    def close(self, sequence: int) -> None:
        turn = self._turns.pop(sequence, None)
        if turn is not None:
            self._end(turn)

    def end_session(self) -> None:
        self._turns.clear()
        del self._events, self._engine

    def _start(self) -> None:
        self._engine = self._library.Engine(self._generator.library_model)
        self._events = self._engine.create_event_buffer(4 * self._engine.get_capabilities().configured_max_batch_size)

    def may_pause(self, sequence: Scheduled) -> bool:
        """A grammar, and the random numbers of a seed, would begin again."""
        request = sequence.request
        goes_on = request.grammar is None and (request.sampling.seed is None or request.sampling.temperature == 0)
        return goes_on or not sequence.num_produced

    def _options(self, request: Any, wanted: GenerationRequest, most: int, num_produced: int) -> Any:
        """The library's options for a turn of up to `most` tokens, after `num_produced` tokens of the answer.

        The library refuses options that contradict each other, such as a temperature without sampling.
        """
        options = self._library.TurnOptions(request)
        options.set_max_generated_tokens(most)
        sampling = wanted.sampling
        temperature, top_p = np.float32(sampling.temperature), np.float32(sampling.top_p)
        samples = temperature > 0 and top_p > 0 and sampling.top_k != 1
        options.set_do_sample(bool(samples))
        if samples:
            options.set_temperature(float(temperature))
            options.set_top_k(sampling.top_k if sampling.top_k < self.model.vocab_size else 0)
            options.set_top_p(float(top_p))
            if sampling.seed is not None:
                options.set_seed(sampling.seed)
        options.set_repetition_penalty(sampling.repetition_penalty if sampling.penalizes else 1.0)
        least = most if wanted.ignore_eos else min(max(0, wanted.min_tokens - num_produced), most)
        options.set_min_generated_tokens(least)
        if wanted.grammar is not None:
            options.set_guidance(*_guidance(wanted.grammar))
        return options

    def _run(self) -> None:
        """Run the library's engine once, and replace it if it failed."""
        try:
            is_well = self._take_events()
        except RuntimeError as error:
            self._fail_all(str(error))
            is_well = False
        if not is_well:
            self._fail_all("another request of the batch has failed")
            self._replace()

    def _take_events(self) -> bool:
        """Run the engine and note its events; returns whether it can be run again."""
        codes = self._library.EngineErrorCode
        owners = {id(turn.request): turn for turn in self._turns.values() if turn.request is not None}
        is_well = True
        is_blocked = brings = False
        for event in self._engine.run(self._events):
            is_blocked |= event.error_code in (codes.CAPACITY_DEFERRED, codes.EXECUTION_CAPACITY_EXCEEDED)
            is_well &= event.error_code not in (codes.ENGINE_CONTRACT_FAILURE, codes.ENGINE_EXECUTION_FAILURE)
            if (turn := owners.get(id(event.request))) is not None:
                self._note(turn, event)
                brings |= turn.is_ready
        if is_well and not brings and not self._engine.has_pending_requests():
            self._fail_all("its turn has stopped without a finish reason")
        self._blocked = self._blocked + 1 if is_blocked and not brings else 0
        if self._blocked >= _MAX_BLOCKED:
            self._make_room()
        return is_well

    def _note(self, turn: Turn, event: Any) -> None:
        codes, reasons = self._library.EngineErrorCode, self._library.FinishReason
        if event.token is not None:
            turn.tokens.append(event.token)
        if event.finish_reason == reasons.FAILED or event.error_code in (
            codes.REQUEST_UNSERVICEABLE,
            codes.ENGINE_CONTRACT_FAILURE,
            codes.ENGINE_EXECUTION_FAILURE,
        ):
            turn.failure = event.error_code.name.lower().replace("_", " ")
        turn.has_ended |= event.finish_reason != reasons.NONE

    def _make_room(self) -> None:
        """End the newest turn. The library never preempts a running turn, so otherwise none would continue."""
        youngest = [turn for turn in self._turns.values() if turn.request is not None and not turn.is_ready][-1:]
        for turn in youngest:
            turn.failure = "there is no memory left for its keys and values"
            self._end(turn)
        self._blocked = 0

    def _fail_all(self, reason: str) -> None:
        for turn in self._turns.values():
            if not turn.has_ended:
                turn.failure = turn.failure or reason

    def _replace(self) -> None:
        """Replace a failed engine. The old one's memory is freed first."""
        for turn in self._turns.values():
            turn.request = None
        del self._events, self._engine
        try:
            self._start()
        except RuntimeError as error:
            raise SystemExit(f"onnxruntime-genai's batch cannot be started anew: {error}") from error

    def _end(self, turn: Turn) -> None:
        request, turn.request = turn.request, None
        if request is None:
            return
        try:
            if turn.number:
                request.cancel_turn(turn.number)
            request.close()
        except RuntimeError:
            log.exception("a request of onnxruntime-genai's batch could not be closed")

    def _scores(self, turn: Turn) -> Scores:
        """The next result of a turn: a token, its failure, the end of text, or pending."""
        if turn.tokens:
            return Scores(choice=turn.tokens.popleft())
        if turn.failure:
            return Scores(failure=f"onnxruntime-genai: {turn.failure}")
        return Scores(choice=self.model.eos_token_ids[0]) if turn.has_ended else Scores()


def _guidance(grammar: str) -> tuple[str, str]:
    """Kind and text of a grammar for the library: Lark unchanged, or the single grammar of llguidance's JSON form.

    Raises InvalidField if there are several.
    """
    if not grammar.lstrip().startswith("{"):
        return "lark_grammar", grammar
    first, *more = json.loads(grammar)["grammars"]
    if more:
        raise InvalidField(
            "grammar",
            "cannot be followed: this answer's form (a schema or a tool call together with reasoning, say) takes "
            "several, and onnxruntime-genai's own batch, where this device's answers come from, takes one",
        )
    if first.get("json_schema") is not None:
        return "json_schema", _NEWER_OPTION.sub(r"\1", json.dumps(first["json_schema"]))
    return "lark_grammar", _NEWER_OPTION.sub(r"\1", first["lark_grammar"])
