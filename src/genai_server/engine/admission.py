"""Accepts or refuses the requests that arrive at an engine, and prepares accepted ones to run (`Admission`).

For each request, an API process receives exactly one message from here, which says that the request is accepted or
refused.
"""

import logging
from collections.abc import Callable
from functools import partial

from msgspec import structs

from genai_server.engine.api_connections import Inbox
from genai_server.engine.encoder_worker import Encoded
from genai_server.engine.metrics import Meter
from genai_server.engine.profiling.runtime_options import RuntimeOptionState
from genai_server.engine.requests import RequestTable
from genai_server.engine.runners.loaded_model import RunnerPair
from genai_server.engine.sampling.grammar import Compiled, Guidance
from genai_server.engine.sampling.reasoning import ReasoningTracker
from genai_server.engine.sequence import Sequence, SequenceState
from genai_server.errors import GenaiServerError, InvalidField, RunnerFailed, SessionTerminated
from genai_server.messages.engine_protocol import Submit
from genai_server.messages.generation_request import GenerationRequest
from genai_server.timing import Clock

log = logging.getLogger(__name__)


class Admission:
    """Creates a sequence for each arriving request, and adds it to the engine's table of requests. The engine's loop
    creates the object; only the loop's thread uses it.

    Worker threads compile the grammar of a request and encode its images or audio; meanwhile the request keeps its
    position in the queue. Their results arrive in `inbox`, like other messages for the loop. `guidance` has the
    grammars, `options` says whether an operator has made the engine refuse requests, `meter` counts, and `clock`
    returns the time in seconds.
    """

    def __init__(
        self,
        requests: RequestTable,
        options: RuntimeOptionState,
        guidance: Guidance,
        runners: RunnerPair,
        meter: Meter,
        inbox: Inbox,
        clock: Clock,
    ) -> None:
        self._requests = requests
        self._options = options
        self._guidance = guidance
        self._runners, self._loaded = runners, runners.loaded
        self._meter = meter
        self._inbox = inbox
        self._clock = clock
        self._encoder = runners.loaded.encoder
        self._vocab_size = runners.main.model.vocab_size
        self._gathered: dict[int, list[Submit]] = {}  # by connection, incomplete groups of requests
        self.num_arrived = 0  # sequences added to the table up to now

    def submit(self, connection: int, submit: Submit) -> None:
        """Receive `submit`, one request of a group, from the connection with the number `connection`. When the last
        request of the group has arrived, all its requests are accepted or refused together.

        The requests of a group come from one connection without other requests in between. All messages but the last
        one have `more` set.
        """
        submits = self._gathered.setdefault(connection, [])
        submits.append(submit)
        if submit.more:
            return
        del self._gathered[connection]
        added: list[Sequence] = []
        try:
            for each in submits:
                each = self._fitted(each)
                self._check(each.request)
                sequence = self._add(connection, each)
                added.append(sequence)
                if each.request.adapter is not None:
                    sequence.adapter = self._loaded.adapters.find(each.request.adapter)
                self._give_guide(sequence)
                self._give_reasoning(sequence)
                self._give_inputs(sequence)
        except GenaiServerError as error:
            for sequence in added:
                self._requests.drop(sequence)
            for each in submits:
                self._requests.refuse(connection, each.key, error)
            return
        for sequence in added:
            self._accept_prepared(sequence)

    def _grammar_compiled(self, sequence: Sequence, compiled: Compiled) -> None:
        """Store a grammar that a worker thread has compiled (`compiled`, or an error text), then accept or refuse the
        sequence that waits for it. If the sequence has ended meanwhile, the grammar is only stored.
        """
        self._guidance.keep(sequence.request.grammar or "", compiled, tenant=sequence.tenant)
        goes_without = isinstance(compiled, str) and not sequence.request.needs_grammar
        self._finish_preparation(sequence, lambda: None if goes_without else self._give_guide(sequence))

    def _inputs_encoded(self, sequence: Sequence, encoded: Encoded) -> None:
        """Add images or audio that a worker thread has encoded to a sequence, and accept the sequence. If `encoded` is
        an error, the sequence is refused. Does nothing if the sequence has ended meanwhile.
        """

        def give() -> None:
            if isinstance(encoded, GenaiServerError):
                raise encoded
            sequence.take(encoded)

        self._finish_preparation(sequence, give)

    def _finish_preparation(self, sequence: Sequence, give: Callable[[], None]) -> None:
        """Count one preparation of a sequence as done, and call `give`, which adds the result to the sequence. After
        its last preparation, the sequence is accepted.

        If `give` raises a GenaiServerError, the sequence is refused with that error. Nothing is added if the sequence
        has ended meanwhile.
        """
        sequence.num_preparations -= 1
        if sequence not in self._requests:
            return
        try:
            self._check(sequence.request)
            give()
        except GenaiServerError as error:
            self._requests.drop(sequence)
            self._requests.refuse(*sequence.origin, error)
        else:
            self._accept_prepared(sequence)

    def _accept_prepared(self, sequence: Sequence) -> None:
        """Accept a sequence for which no worker thread has anything left to do. Otherwise set its state to PREPARING,
        until its grammar is compiled and its inputs are encoded.
        """
        if sequence.num_preparations:
            sequence.state = SequenceState.PREPARING
        else:
            self._requests.accept(sequence)

    def open(self, sequence: Sequence, seconds_per_token: float) -> None:
        """Reserve a KV cache slot for a sequence that the scheduler has admitted, and start to load the stored
        beginning of its prompt from disk if there is one. If that fails, the sequence ends with the error.

        `seconds_per_token` is how long the model takes to read one prompt token; 0 if unknown.
        """
        with self._requests.failing([sequence]):
            self._runners.open(sequence)
            if not sequence.num_preemptions:
                self._meter.opened(sequence)
            disk = self._loaded.disk_cache
            if disk is not None and sequence.batched and sequence.reuses_past:
                disk.fetch(
                    sequence, seconds_per_token, lambda: self._inbox.put((0, partial(self.prefix_loaded, sequence)))
                )

    def prefix_loaded(self, sequence: Sequence) -> None:
        """End the load of a sequence's prefix from disk, and count the prompt tokens as read whose KV cache was loaded.
        The model will read the others. Does nothing if the sequence has ended.
        """
        disk = self._loaded.disk_cache
        if disk is not None and sequence in self._requests:
            self._found(sequence, disk.take(sequence))

    def match_again(self, sequence: Sequence) -> None:
        """Look in the KV cache for prompt tokens of `sequence` that other sequences have read since `open` was called,
        and reuse their KV cache. Called before the model reads the first part of the prompt.

        If copying the KV cache fails, the failure is logged, and the model reads the tokens itself.
        """
        if not sequence.reuses_past:
            return
        try:
            self._found(sequence, self._runners.of(sequence).match_again(sequence) - sequence.num_read)
        except RunnerFailed as error:  # the step must not fail for what would only save time
            log.warning("request %s: a cached prefix could not be copied: %s", sequence.request.request_id, error)

    def disconnected(self, connection: int) -> None:
        """Discard the requests of an incomplete group that came from the connection with the number `connection`, which
        is closed.
        """
        self._gathered.pop(connection, None)

    def _found(self, sequence: Sequence, num_tokens: int) -> None:
        """Count `num_tokens` further prompt tokens of an opened sequence as read, because their KV cache was found in
        memory or on disk.
        """
        sequence.num_read += num_tokens
        if not sequence.num_preemptions:
            sequence.num_cached += num_tokens
            self._meter.matched(num_tokens)

    def _check(self, request: GenerationRequest) -> None:
        if self._options.terminated:
            raise SessionTerminated('terminate_session is "1" on this device; set it to "0" to continue')
        if invalid := [token for token in request.sampling.logit_bias if not 0 <= token < self._vocab_size]:
            raise InvalidField("logit_bias", "must have tokens below", limit=self._vocab_size, given=invalid[0])
        words = request.sampling.bad_words
        if not all(words) or any(not 0 <= token < self._vocab_size for word in words for token in word):
            raise InvalidField("bad_words", "must have tokens below", limit=self._vocab_size)
        if len(allowed := request.sampling.allowed_tokens) not in (0, (self._vocab_size + 7) // 8):
            raise InvalidField(
                "allowed_token_ids", "must have as many bits as tokens:", limit=self._vocab_size, given=8 * len(allowed)
            )
        if (last := max(request.prompt)) >= self._vocab_size:
            raise InvalidField("prompt", "must have tokens below", limit=self._vocab_size, given=last)
        if (last := max(request.prediction, default=0)) >= self._vocab_size:
            raise InvalidField("prediction", "must have tokens below", limit=self._vocab_size, given=last)
        if self._encoder is not None:
            self._encoder.check(request)
        elif request.images or request.sound is not None:
            raise InvalidField(
                "images" if request.images else "sound", "cannot be read by this model, which reads text only"
            )
        if invalid := [token for token in request.scored_tokens if not 0 <= token < self._vocab_size]:
            raise InvalidField("scored_tokens", "must have tokens below", limit=self._vocab_size, given=invalid[0])
        self._runners.for_request(request).check(request)

    def _fitted(self, submit: Submit) -> Submit:
        """Return `submit` as it is, or without its request's grammar if the grammar is optional and cannot be
        followed.
        """
        request = submit.request
        if request.grammar is None or request.needs_grammar:
            return submit
        try:
            self._runners.for_request(request).check(request)
            self._guidance.guide(request.grammar, tenant=request.tenant)
        except InvalidField:
            return structs.replace(submit, request=structs.replace(request, grammar=None))
        return submit

    def _add(self, connection: int, submit: Submit) -> Sequence:
        origin, reuses_past = (connection, submit.key), self._runners.reuses_past(submit.request)
        sequence = Sequence(self.num_arrived, origin, submit.request, self._clock, reuses_past=reuses_past)
        self._requests.add(sequence)
        self.num_arrived += 1
        return sequence

    def _give_guide(self, sequence: Sequence) -> None:
        """Set the object that follows a sequence's grammar and limits its next tokens. If the grammar is not compiled
        yet, a worker thread starts to compile it. Does nothing for a sequence without a grammar.

        Raises InvalidField if the grammar is known to be invalid.
        """
        grammar = sequence.request.grammar
        if grammar is None:
            return
        sequence.guide = self._guidance.guide(grammar, tenant=sequence.tenant)
        if sequence.guide is None:
            sequence.num_preparations += 1
            # The worker's thread calls this.
            self._guidance.compile(
                grammar,
                lambda compiled: self._inbox.put((0, partial(self._grammar_compiled, sequence, compiled))),
                tenant=sequence.tenant,
                low_priority=sequence.low_priority,
            )

    def _give_reasoning(self, sequence: Sequence) -> None:
        """Set the object that follows the reasoning of a sequence, if its request has rules for the reasoning, such as
        a budget of tokens.

        Raises InvalidField if the request has such a budget, but the tokenizer of the model cannot convert single
        tokens to text, which is needed to follow the reasoning.
        """
        rules = sequence.request.thoughts
        if rules is None:
            return
        if self._guidance.has_tokenizer:
            sequence.reasoning = ReasoningTracker(rules, self._guidance.token_bytes, len(sequence.request.prompt))
        elif rules.budget is not None:
            raise InvalidField(
                "thinking_token_budget", "cannot be followed with this model: its tokenizer gives no text of tokens"
            )

    def _give_inputs(self, sequence: Sequence) -> None:
        """Start to encode the images or the audio of a sequence in a worker thread. Does nothing if its request has
        none.
        """
        if self._encoder is None or not self._encoder.has_inputs(sequence.request):
            return
        sequence.num_preparations += 1
        # The worker's thread calls this.
        self._encoder.submit(
            sequence, lambda encoded: self._inbox.put((0, partial(self._inputs_encoded, sequence, encoded)))
        )
