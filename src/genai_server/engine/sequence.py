"""One request inside the engine."""

import math

from genai_server.engine.guidance import Guide
from genai_server.engine.sampler import Sampler
from genai_server.generation import GenerationRequest, Phases
from genai_server.messages.operator import RequestState
from genai_server.timing import Clock


class Sequence:
    """A request with its tokens; `id` is unique in the engine's life, `origin` who wants it, `guide` what the answer
    must fit, `adapter` what its runner has loaded for it.

    `tokens` are those of the prompt and those produced; its runner has read the first `num_read` of them, and
    `num_cached` of the prompt came from the cache. The log probabilities of the prompt's first `num_scored` need not be
    told any more; the very first has none. `profile` is the prefix that its passes shall be profiled under from now on,
    `active_profile` the one that the runner knows; "0" is none. `profiled_from` is the output token from which it is
    profiled, `num_profiled` how many of its tokens were; one that is `left_out` is not chosen when the device is
    profiled. `batched` says which of the engine's two runners has it. At `deadline`, a time of the clock, the answer
    ends as it is. One that is `by_library` has its prompt read and its tokens chosen where it runs. `gap` are the
    seconds between the last two tokens, None before the second.
    """

    def __init__(
        self,
        id: int,
        origin: tuple[int, int],
        request: GenerationRequest,
        clock: Clock,
        guide: Guide | None = None,
        *,
        adapter: object | None = None,
    ) -> None:
        self.id = id
        self.origin = origin
        self.request = request
        self.sampler = Sampler(request.sampling, request.prompt)
        self.guide = guide
        self.adapter = adapter
        self.tokens = list(request.prompt)
        self.num_read = 0
        self.num_cached = 0
        self.num_scored = 1
        self.batched = False
        self.by_library = False
        self.profile = "0"
        self.active_profile = "0"
        self.profiled_from = 0
        self.num_profiled = 0
        self.left_out = False
        self._clock = clock
        self._arrived = clock()
        self.deadline = math.inf if request.timeout is None else self._arrived + request.timeout
        self._started: float | None = None
        self._first: float | None = None
        self._last = self._arrived
        self.gap: float | None = None

    @property
    def max_length(self) -> int:
        """Tokens that the sequence can grow to, prompt included."""
        return min(self.request.max_length, len(self.request.prompt) + self.request.max_tokens)

    @property
    def num_produced(self) -> int:
        """Tokens of the answer up to now."""
        return len(self.tokens) - len(self.request.prompt)

    @property
    def num_unread(self) -> int:
        """Tokens that the runner has not read yet."""
        return len(self.tokens) - self.num_read

    @property
    def is_prefilling(self) -> bool:
        """Whether more than the last produced token is unread: the prompt, or a past that a runner reads anew."""
        return not self.by_library and (self.num_unread > 1 or self.num_produced == 0)

    @property
    def wants_positions(self) -> bool:
        """Whether the logits after each token of the prompt are wanted, for its log probabilities."""
        return self.request.prompt_logprobs and self.num_scored < len(self.request.prompt)

    @property
    def num_left(self) -> int:
        """Tokens that may still be produced."""
        return max(0, self.max_length - len(self.tokens))

    def profile_under(self, prefix: str) -> None:
        """Be profiled from the next token on, or go on as before under another prefix, or no longer ("0")."""
        if self.profile == "0" or prefix == "0":
            self.profiled_from = self.num_produced
        self.profile = prefix

    def start(self) -> None:
        """The first pass begins."""
        if self._started is None:
            self._started = self._clock()

    def append(self, token: int) -> None:
        """Take a token that the model has produced."""
        self.tokens.append(token)
        now = self._clock()
        if self._first is None:
            self._first = now
        else:
            self.gap = now - self._last
        self._last = now

    def state(self, *, is_running: bool) -> RequestState:
        """The sequence in the operator's list."""
        phase = "queued" if not is_running else "decode" if self.num_produced else "prefill"
        age = self._clock() - self._arrived
        prompt = len(self.request.prompt)
        adapter = None if self.request.adapter is None else self.request.adapter.name
        return RequestState(self.request.request_id, phase, age, prompt, self.num_cached, self.num_produced, adapter)

    def phases(self) -> Phases:
        """Where the time went up to now."""
        now = self._clock()
        started = now if self._started is None else self._started
        first = now if self._first is None else self._first
        return Phases(queue=started - self._arrived, prefill=first - started, decode=max(0.0, self._last - first))
