"""Takes requests in, or refuses them: what is against one is said before it is accepted."""

from collections.abc import Callable, Collection

from genai_server.engine.guidance import Compiled, Guidance
from genai_server.engine.runners.pair import RunnerPair
from genai_server.engine.runtime_options import RuntimeOptionState
from genai_server.engine.scheduler import Scheduler
from genai_server.engine.sequence import Sequence
from genai_server.errors import InvalidField, SessionTerminated
from genai_server.generation import GenerationRequest
from genai_server.messages.generation import Submit
from genai_server.timing import Clock

# From any thread: the grammar that a connection's request waits for has been compiled.
OnCompiled = Callable[[int, Submit, Compiled], None]


class Reception:
    """Makes sequences of requests; belongs to the loop's thread.

    A request whose grammar is new waits until that is compiled, holding its place, and is considered again.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        options: RuntimeOptionState,
        guidance: Guidance,
        runners: RunnerPair,
        clock: Clock,
        on_compiled: OnCompiled,
    ) -> None:
        self._scheduler = scheduler
        self._options = options
        self._guidance = guidance
        self._runners = runners
        self._vocab_size = runners.model.vocab_size
        self._clock = clock
        self._on_compiled = on_compiled
        self._compiling: dict[tuple[int, int], Sequence] = {}
        self._next_id = 0

    @property
    def compiling(self) -> Collection[Sequence]:
        """Those whose grammars are being compiled."""
        return self._compiling.values()

    @property
    def num_arrived(self) -> int:
        """How many requests have come that were not refused at once."""
        return self._next_id

    def take(self, connection: int, submit: Submit) -> Sequence | None:
        """The scheduled sequence, or None while its grammar is compiled.

        Raises SessionTerminated, QueueFull, InvalidField, and ModelNotFound or Unavailable for its adapter.
        """
        origin, request = (connection, submit.key), submit.request
        sequence = self._compiling.pop(origin, None)
        self._check(request)
        if sequence is None:
            adapter = self._runners.adapters.find(request.adapter)
            sequence = Sequence(self._next_id, origin, request, self._clock, adapter=adapter)
            self._next_id += 1
        if request.grammar is not None:
            sequence.guide = self._guidance.guide(request.grammar)
            if sequence.guide is None:
                self._compiling[origin] = sequence
                self._guidance.compile(request.grammar, lambda found: self._on_compiled(connection, submit, found))
                return None
        self._scheduler.add(sequence)
        return sequence

    def compiled(self, connection: int, submit: Submit, compiled: Compiled) -> bool:
        """Keep what has come of a grammar; returns whether somebody still waits for it, to be taken again."""
        self._guidance.keep(submit.request.grammar or "", compiled)
        return (connection, submit.key) in self._compiling

    def forget(self, connection: int, key: int | None = None) -> None:
        """This request, or all of this connection, need not be considered any more."""
        self._compiling = {
            origin: sequence
            for origin, sequence in self._compiling.items()
            if origin[0] != connection or key not in (None, origin[1])
        }

    def _check(self, request: GenerationRequest) -> None:
        if self._options.terminated:
            raise SessionTerminated('terminate_session is "1" on this device; set it to "0" to go on')
        if strange := [token for token in request.sampling.logit_bias if not 0 <= token < self._vocab_size]:
            raise InvalidField(f"token {strange[0]} is not among the model's {self._vocab_size}", param="logit_bias")
        if (last := max(request.prompt)) >= self._vocab_size:
            raise InvalidField(f"token {last} is not among the model's {self._vocab_size}", param="prompt")
        self._runners.check(request)
        self._scheduler.require_room(len(request.prompt), self._compiling.values())
