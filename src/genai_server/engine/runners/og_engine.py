"""The runner over onnxruntime-genai's own batching, `og.Engine`: what models with paged attention are made for.

The library reads prompts and chooses tokens by itself and tells no logits, so some fields of a request cannot be had
here. A request of its is opened for each sequence, with one turn: the prompt is its input, and each run of the engine
brings a token of every turn that has been read. Where it batches dynamically (paged attention, on GPUs) a turn joins
those that run; elsewhere it forms a batch of at most four, and turns that come later wait until all of it has ended.
"""

import json
import logging
import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from genai_server.engine.runners.base import Opening, Row
from genai_server.engine.runners.og_generator import OgGeneratorRunner
from genai_server.engine.runners.scores import Logits, Scores
from genai_server.errors import InvalidField, RunnerFailed
from genai_server.generation import GenerationRequest, ModelInfo

log = logging.getLogger(__name__)
# Runs in a row that bring nothing, for the memory for keys and values is full, until one must make room.
_MOST_BLOCKED = 100

# The llguidance in onnxruntime-genai 0.18 is older than ours, and refuses this option of schemas. Without it a text in
# an answer may be written with other escapes of JSON, too.
_NEWER_OPTION = re.compile(r'("key_separator": ": "), "json_allowed_escapes": "(?:[^"\\]|\\.)*"')


@dataclass
class Turn:
    """What the library does for a sequence, and the tokens that it has brought and nobody has taken yet.

    It may have ended or failed behind these. Without a `request` it is over, or its engine is.
    """

    request: Any = None
    number: int = 0
    tokens: deque[int] = field(default_factory=deque)
    has_ended: bool = False
    failure: str = ""

    @property
    def is_ready(self) -> bool:
        """Whether there is something to tell."""
        return bool(self.tokens) or self.has_ended or bool(self.failure)


class OgEngineRunner:
    """At most `max_rows` sequences on the model that a GeneratorRunner has loaded.

    An engine that fails is replaced, and all its turns fail. Raises SystemExit if that cannot be: a process that is
    started anew may have the memory.
    """

    name = "library"
    chooses = True
    # What of its rows rounds otherwise in company, the library does not tell.
    lone_row_is_exact = False
    takes_past = False
    mixes = False  # it does so by itself
    int8_from = None
    present_names: tuple[str, ...] = ()

    def __init__(self, generator: OgGeneratorRunner, max_rows: int) -> None:
        self._generator = generator
        self._library = generator.library
        self._turns: dict[int, Turn] = {}
        self._blocked = 0
        self._start()
        capabilities = self._engine.get_capabilities()
        self._max_rows = min(max_rows, int(capabilities.configured_max_batch_size))
        # 0 where it batches statically, which has no limits of its own, nor seeds.
        self._is_dynamic = capabilities.max_scheduled_tokens > 0
        model = generator.model
        self._model = structs.replace(
            model,
            context_length=min(model.context_length, capabilities.max_request_length or model.context_length),
            defaults=structs.replace(model.defaults, min_p=0.0),  # nobody asks for a default that cannot be had
        )

    @property
    def model(self) -> ModelInfo:
        """The model, with as many tokens of context as the library's pages hold of one sequence."""
        return self._model

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
        if request.grammar is not None:
            _guidance(request.grammar)

    def open(self, sequence: int, prompt: list[int], how: Opening) -> int:
        """Begin the sequence's turn. Raises InvalidField if the library does not take what the request asks for."""
        most = how.max_length - len(prompt)
        turn = self._turns[sequence] = Turn(has_ended=most == 0)  # for none is as many as there may be to the library
        if most:
            options = self._library.RequestOptions()
            options.set_max_session_tokens(how.max_length)
            try:
                turn.request = self._engine.create_request(options=options)
                chosen = self._options(turn.request, how.request, most)
                turn.number = turn.request.begin_turn(np.array(prompt, np.int32), chosen)
            except RuntimeError as error:
                raise InvalidField(f"onnxruntime-genai does not take the request: {error}") from None
        return len(prompt) - 1

    def forward(self, rows: Sequence[Row]) -> list[Scores]:
        return self.advance([row.sequence for row in rows], [], ())

    def prefill(self, sequence: int, tokens: Sequence[int], *, positions: bool = False) -> Logits:
        """As every runner's, but that all logits are minus infinity but that of the token that was chosen."""
        if positions:
            raise RunnerFailed("onnxruntime-genai's own batch tells no logits of a prompt")
        logits: Logits = self.decode([sequence], tokens[-1:])[0]
        return logits

    def decode(self, sequences: Sequence[int], tokens: Sequence[int]) -> Logits:
        """As every runner's, with logits as of `prefill`."""
        logits = np.full((len(sequences), self._model.vocab_size), -np.inf, np.float32)
        for row, sequence in zip(logits, sequences, strict=True):
            while (scores := self.advance([sequence], [], [])[0]).is_pending:
                pass
            row[scores.chosen()] = 0.0
        return logits

    def advance(self, sequences: Sequence[int], tokens: Sequence[int], num_choices: Iterable[int]) -> list[Scores]:
        """The next token of each sequence, whatever it might be chosen among; why there is none, where one failed.

        The engine runs once, and only if it has brought nothing yet for any of them: some may be pending then, whose
        prompts are still being read, or wait for memory.
        """
        turns = [self._turns[sequence] for sequence in sequences]
        if not any(turn.is_ready for turn in turns):
            self._run()
        return [self._scores(turn) for turn in turns]

    def match_again(self, sequence: int, prompt: list[int]) -> int:
        """It reads prompts by itself, and is not asked."""
        raise NotImplementedError

    def forget(self) -> int:
        """Nothing: a past that the library may keep is out of reach."""
        return 0

    def adopt(
        self,
        sequence: int,
        read: list[int],
        num_prefilled: int,
        past: dict[str, NDArray[Any]],
        *,
        exact: bool = False,
        salt: str | None = None,
    ) -> None:
        raise RunnerFailed("onnxruntime-genai's own batch takes no keys and values")

    def interrupt(self) -> None:
        """Nothing: the library has no call that ends a run."""

    def set_runtime_option(self, sequence: int, option: str, value: str) -> None:
        raise RunnerFailed(f"onnxruntime-genai's own batch has no runtime option {option}")

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

    def _options(self, request: Any, wanted: GenerationRequest | None, most: int) -> Any:
        """How the library shall choose, which is up to `most` tokens; greedily, if nothing is said.

        It refuses options that contradict each other, as a temperature does where only the best token is chosen.
        """
        options = self._library.TurnOptions(request)
        options.set_max_generated_tokens(most)
        if wanted is None:
            options.set_do_sample(False)
            return options
        sampling = wanted.sampling
        temperature, top_p = np.float32(sampling.temperature), np.float32(sampling.top_p)
        samples = temperature > 0 and top_p > 0 and sampling.top_k != 1
        options.set_do_sample(bool(samples))
        if samples:
            options.set_temperature(float(temperature))
            options.set_top_k(sampling.top_k if sampling.top_k < self._model.vocab_size else 0)
            options.set_top_p(float(top_p))
            if sampling.seed is not None:
                options.set_seed(sampling.seed)
        options.set_repetition_penalty(sampling.repetition_penalty)
        options.set_min_generated_tokens(most if wanted.ignore_eos else min(wanted.min_tokens, most))
        if wanted.grammar is not None:
            options.set_guidance(*_guidance(wanted.grammar))
        return options

    def _run(self) -> None:
        """One pass of the library's, and what has come of it."""
        try:
            is_well = self._take_events()
        except RuntimeError as error:
            self._fail_all(str(error))
            is_well = False
        if not is_well:
            self._fail_all("another request of the batch has failed")
            self._replace()

    def _take_events(self) -> bool:
        """Run the engine and note what it brings; returns whether it can go on."""
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
            self._fail_all("its turn has ended without an end")
        self._blocked = self._blocked + 1 if is_blocked and not brings else 0
        if self._blocked >= _MOST_BLOCKED:
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
        """End the turn that came last: the library takes no memory from one that runs, and so none would go on."""
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
        """A new engine for one that takes no more requests; the old one's memory goes first."""
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
        """What is next of a turn: a token, the end of text where it has ended, or nothing yet."""
        if turn.tokens:
            return Scores(choice=turn.tokens.popleft())
        if turn.failure:
            return Scores(failure=f"onnxruntime-genai: {turn.failure}")
        return Scores(choice=self._model.eos_token_ids[0]) if turn.has_ended else Scores()


def _guidance(grammar: str) -> tuple[str, str]:
    """Kind and text of a grammar as the library takes it: Lark as it is, of llguidance's JSON form one grammar.

    Raises InvalidField if there are several.
    """
    if not grammar.lstrip().startswith("{"):
        return "lark_grammar", grammar
    first, *more = json.loads(grammar)["grammars"]
    if more:
        raise InvalidField(
            "this answer's form (a schema or a tool call together with reasoning, say) takes several grammars, and "
            "onnxruntime-genai's own batch, where this device's answers come from, takes one",
            param="grammar",
        )
    if first.get("json_schema") is not None:
        return "json_schema", _NEWER_OPTION.sub(r"\1", json.dumps(first["json_schema"]))
    return "lark_grammar", _NEWER_OPTION.sub(r"\1", first["lark_grammar"])
