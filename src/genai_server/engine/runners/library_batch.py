"""The runner over onnxruntime-genai's own batching, `og.Engine`: what models with paged attention are made for.

The library chooses the tokens itself and tells no logits, so some fields of a request cannot be had here. A request of
its is opened for each sequence, with one turn: the prompt is its input, and each run of the engine brings a token of
every turn that goes on. Where it batches dynamically (paged attention, on GPUs) a turn joins those that run; elsewhere
it forms a batch of at most four, and a turn that comes later waits until all of them have ended.
"""

import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genai_server.engine.runners.base import Interrupted, Logits, Opening, Scores
from genai_server.engine.runners.generator import GeneratorRunner
from genai_server.errors import InvalidField, RunnerFailed
from genai_server.generation import GenerationRequest, ModelInfo

_CHOSEN = np.zeros((1, 1), np.float32)


@dataclass
class Turn:
    """A sequence's turn: the prompt that it is begun with, as soon as all of it has come, and the tokens that it has
    brought and nobody has taken yet. It may end or fail behind these.
    """

    how: Opening
    prompt: list[int]
    given: list[int] = field(default_factory=list)
    request: Any = None
    number: int = 0
    tokens: deque[int] = field(default_factory=deque)
    has_ended: bool = False
    failure: str = ""


class LibraryBatch:
    """At most `max_rows` sequences on the model that a GeneratorRunner has loaded."""

    name = "library"
    chooses = True
    # What of its rows rounds otherwise in company, the library does not tell.
    lone_row_is_exact = False
    takes_past = False
    present_names: tuple[str, ...] = ()

    def __init__(self, generator: GeneratorRunner, max_rows: int) -> None:
        self._generator = generator
        self._library = generator.library
        self._turns: dict[int, Turn] = {}
        self._start()
        capabilities = self._engine.get_capabilities()
        self._max_rows = min(max_rows, int(capabilities.configured_max_batch_size))
        # 0 where it batches statically, which has no limits of its own, nor seeds.
        self._is_dynamic = capabilities.max_scheduled_tokens > 0
        self._max_length = capabilities.max_request_length

    @property
    def model(self) -> ModelInfo:
        return self._generator.model

    @property
    def max_rows(self) -> int:
        return self._max_rows

    @property
    def nodes(self) -> Mapping[str, int | None]:
        """The providers of the model."""
        return self._generator.nodes

    def check(self, request: GenerationRequest) -> None:
        """Raises InvalidField for what the library's batch does not have, before anything is done for the request."""
        sampling = request.sampling
        asked = {
            "exact": request.exact,
            "logprobs": request.top_logprobs is not None or request.prompt_logprobs,
            "logit_bias": bool(sampling.logit_bias),
            "frequency_penalty": sampling.frequency_penalty != 0.0,
            "presence_penalty": sampling.presence_penalty != 0.0,
            "min_p": sampling.min_p != 0.0 and sampling.temperature != 0.0,
            "seed": sampling.seed is not None and sampling.temperature != 0.0 and not self._is_dynamic,
        }
        for name, is_asked in asked.items():
            if is_asked:
                raise InvalidField(
                    f"{name} cannot be had on this device: its answers come from onnxruntime-genai's own batch, which "
                    "has none",
                    param=name,
                )
        length = min(request.max_length, len(request.prompt) + request.max_tokens)
        if 0 < self._max_length < length:
            raise InvalidField(
                f"prompt and answer may have {self._max_length} tokens together in onnxruntime-genai's batch, not "
                f"{length}",
                param="max_tokens",
            )
        if request.grammar is not None:
            _guidance(request.grammar)

    def open(self, sequence: int, prompt: list[int], how: Opening) -> int:
        self._turns[sequence] = Turn(how, prompt)
        return 0

    def prefill(self, sequence: int, tokens: Sequence[int], *, positions: bool = False) -> Logits:
        """As every runner's, but that the last logits are minus infinity but for the token that was chosen.

        Raises Interrupted as long as the turn has brought no token; others have brought theirs meanwhile.
        """
        if positions and len(tokens) > 1:
            raise RunnerFailed("onnxruntime-genai's own batch tells no logits of a prompt")
        turn = self._turns[sequence]
        logits = np.full(self.model.vocab_size, -np.inf, np.float32)
        if self._read(turn, tokens):
            if not turn.tokens:
                self._run()
            token = self._next(turn)
            if token is None:
                raise Interrupted
            logits[token] = 0.0
        return logits

    def decode(self, sequences: Sequence[int], tokens: Sequence[int]) -> Logits:
        """As every runner's; all logits are minus infinity but those of the tokens that were chosen."""
        logits = np.full((len(sequences), self.model.vocab_size), -np.inf, np.float32)
        for row, sequence in zip(logits, sequences, strict=True):
            while (scores := self.advance([sequence], [], ())[0]).is_pending:
                pass
            row[scores.token(0)] = 0.0
        return logits

    def advance(self, sequences: Sequence[int], tokens: Sequence[int], num_choices: Sequence[int]) -> list[Scores]:
        """The next token of each sequence, whatever it might be chosen among; why there is none, where one failed.

        After one run of the engine it may lack some, whose turns wait for memory, say: they are asked for again.
        """
        turns = [self._turns[sequence] for sequence in sequences]
        if not all(turn.tokens or turn.has_ended or turn.failure for turn in turns):
            self._run()
        return [self._scores(turn) for turn in turns]

    def forget(self) -> int:
        """The library keeps no past of a turn that has ended."""
        return 0

    def adopt(
        self, sequence: int, read: list[int], num_prefilled: int, past: dict[str, NDArray[Any]], *, exact: bool = False
    ) -> None:
        raise RunnerFailed("onnxruntime-genai's own batch takes no keys and values")

    def interrupt(self) -> None:
        """Nothing: the library has no call that ends a run."""

    def set_runtime_option(self, sequence: int, option: str, value: str) -> None:
        raise RunnerFailed(f"onnxruntime-genai's own batch has no runtime option {option}")

    def close(self, sequence: int) -> None:
        turn = self._turns.pop(sequence, None)
        if turn is not None and turn.request is not None:
            if turn.number:
                turn.request.cancel_turn(turn.number)
            turn.request.close()

    def end_session(self) -> None:
        self._turns.clear()
        del self._engine

    def _start(self) -> None:
        self._engine = self._library.Engine(self._generator.library_model)
        self._events = self._engine.create_event_buffer(4 * self._engine.get_capabilities().configured_max_batch_size)

    def _read(self, turn: Turn, tokens: Sequence[int]) -> bool:
        """Take tokens of a prompt, but not twice; returns whether its turn has begun, for all have come."""
        if turn.number:
            return True
        turn.given.extend(tokens)
        if len(turn.given) < len(turn.prompt) or len(turn.given) >= turn.how.max_length:
            return False  # more is to come, or no token is wanted, which the library takes for as many as there may be
        try:
            self._begin(turn)
        except RuntimeError as error:
            raise RunnerFailed(f"onnxruntime-genai: {error}") from error
        return True

    def _begin(self, turn: Turn) -> None:
        options = self._library.RequestOptions()
        options.set_max_session_tokens(turn.how.max_length)
        turn.request = self._engine.create_request(options=options)
        turn.number = turn.request.begin_turn(
            np.array(turn.given, np.int32), self._options(turn.request, turn.how, turn.how.max_length - len(turn.given))
        )

    def _options(self, request: Any, how: Opening, most: int) -> Any:
        """How the library shall choose, which is up to `most` tokens; greedily, if nothing is said."""
        options = self._library.TurnOptions(request)
        options.set_max_generated_tokens(most)
        wanted = how.request
        if wanted is None or wanted.sampling.temperature == 0.0 or wanted.sampling.top_k == 1:
            options.set_do_sample(False)  # the library refuses a temperature that would have no effect
        else:
            options.set_do_sample(True)
            options.set_temperature(wanted.sampling.temperature)
            options.set_top_k(wanted.sampling.top_k)
            options.set_top_p(wanted.sampling.top_p)
            if wanted.sampling.seed is not None:
                options.set_seed(wanted.sampling.seed % 2**64)
        if wanted is not None:
            options.set_repetition_penalty(wanted.sampling.repetition_penalty)
            options.set_min_generated_tokens(most if wanted.ignore_eos else min(wanted.min_tokens, most))
            if wanted.grammar is not None:
                options.set_guidance(*_guidance(wanted.grammar))
        return options

    def _run(self) -> None:
        """One pass of the library's, and what has come of it."""
        owners = {id(turn.request): turn for turn in self._turns.values() if turn.request is not None}
        try:
            is_well = True
            for event in self._engine.run(self._events):
                turn = owners.get(id(event.request))
                if turn is not None:
                    is_well &= self._take(turn, event)
            if is_well and not self._engine.has_pending_requests():
                self._end_all("it has ended without a token")
        except RuntimeError as error:
            self._end_all(str(error))
            is_well = False
        if not is_well:
            self._end_all("another request of the batch has failed")
            for turn in self._turns.values():
                turn.request = None
            self._start()  # an engine that has failed takes no more requests

    def _take(self, turn: Turn, event: Any) -> bool:
        """Note what has come of a turn; returns whether the engine can go on."""
        codes, reasons = self._library.EngineErrorCode, self._library.FinishReason
        if event.token is not None:
            turn.tokens.append(event.token)
        turn.has_ended |= event.finish_reason != reasons.NONE
        if event.finish_reason == reasons.FAILED or event.error_code in (
            codes.REQUEST_UNSERVICEABLE,
            codes.ENGINE_CONTRACT_FAILURE,
            codes.ENGINE_EXECUTION_FAILURE,
        ):
            turn.failure = event.error_code.name.lower().replace("_", " ")
        return event.error_code not in (codes.ENGINE_CONTRACT_FAILURE, codes.ENGINE_EXECUTION_FAILURE)

    def _end_all(self, reason: str) -> None:
        for turn in self._turns.values():
            if turn.number and not turn.has_ended:
                turn.failure = turn.failure or reason

    def _scores(self, turn: Turn) -> Scores:
        try:
            token = self._next(turn)
        except RunnerFailed as error:
            return Scores(_CHOSEN, failure=error.message)
        return Scores(_CHOSEN, np.array([] if token is None else [token], np.int64))

    def _next(self, turn: Turn) -> int | None:
        """The next token, the end of text where the turn has ended; None if it has not come. Raises RunnerFailed."""
        if turn.tokens:
            return turn.tokens.popleft()
        if turn.failure:
            raise RunnerFailed(f"onnxruntime-genai: {turn.failure}")
        return self.model.eos_token_ids[0] if turn.has_ended else None


def _guidance(grammar: str) -> tuple[str, str]:
    """Kind and text of a grammar as the library takes it: Lark as it is, of llguidance's JSON form one grammar.

    Raises InvalidField if there are several.
    """
    if not grammar.lstrip().startswith("{"):
        return "lark_grammar", grammar
    first, *more = json.loads(grammar)["grammars"]
    if more:
        raise InvalidField("onnxruntime-genai's own batch takes no grammar of several parts", param="grammar")
    if first.get("json_schema") is not None:
        return "json_schema", json.dumps(first["json_schema"])
    return "lark_grammar", first["lark_grammar"]
