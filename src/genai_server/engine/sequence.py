"""A sequence: one request inside the engine."""

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

from genai_server.engine.encoded_inputs import EncodedAudio, PromptImages
from genai_server.engine.sampling.grammar import Guide
from genai_server.engine.sampling.reasoning import ReasoningTracker
from genai_server.engine.sampling.sampler import Sampler
from genai_server.engine.scheduling.drafts import FindText, TextDrafts
from genai_server.messages.admin import RequestPhase, RequestState
from genai_server.messages.generation_request import GenerationRequest, Phases
from genai_server.timing import Clock


@dataclass(frozen=True, eq=False)
class LoadedAdapter:
    """A loaded LoRA adapter. It stays in memory as long as requests may choose it or a sequence uses it."""

    # Of the file's content. Keys and values depend on it.
    digest: str
    # What the runner has loaded of the file.
    loaded: Any


class SequenceState(StrEnum):
    """States of a sequence in the engine."""

    PREPARING = "preparing"  # not accepted yet; worker threads compile its grammar or encode its inputs
    WAITING = "waiting"  # accepted, and ready to run
    RUNNING = "running"  # has a slot on the device
    ENDED = "ended"  # has left the table of requests


class SequenceProfile:
    """Profiling state of one sequence. `prefix` and `active` are prefixes of profile files; None means no profiling."""

    def __init__(self) -> None:
        self.prefix: str | None = None  # to be used for the next passes
        self.active: str | None = None  # set in the runner
        self.from_token = 0  # the first profiled output token
        self.num_tokens = 0  # profiled tokens
        self.left_out = False  # not selected when the device is profiled
        self.is_awaited = False  # soon to be profiled: a draft could pass over the first token

    @property
    def is_on(self) -> bool:
        """Whether the next pass of the sequence is to be profiled."""
        return self.prefix is not None

    def switch(self, prefix: str | None, next_token: int) -> None:
        """Set the file prefix for profiles from the output token `next_token` on; None stops profiling."""
        if self.prefix is None or prefix is None:
            self.from_token = next_token
        self.prefix = prefix


class Sequence:
    """A request and its tokens, from arrival to end."""

    def __init__(
        self,
        id: int,
        origin: tuple[int, int],
        request: GenerationRequest,
        clock: Clock,
        guide: Guide | None = None,
        *,
        adapter: LoadedAdapter | None = None,
        reuses_past: bool = False,
    ) -> None:
        self.id = id  # unique in the engine process, and ascending
        self.origin = origin  # connection and key of the reader
        self.request = request
        # Tokens that the sequence can grow to, prompt included.
        self.max_length = min(request.max_length, len(request.prompt) + request.max_tokens)
        self.sampler = Sampler(request.sampling, request.prompt)
        self.guide = guide  # the grammar's state; None without a grammar
        self.reasoning: ReasoningTracker | None = None  # ends the reasoning; None if the model has no known format
        self.adapter = adapter  # None without one
        self.reuses_past = reuses_past  # whether it may reuse a cached prefix
        self.state = SequenceState.WAITING
        self.num_preparations = 0  # things that other threads prepare for it
        self.tokens = list(request.prompt)  # the tokens of the prompt and of the answer
        # The prompt's, with ids of their own for the features of images.
        self.prompt = request.prompt
        self.images: PromptImages | None = None  # until they are encoded, and without any
        self.audio: EncodedAudio | None = None  # until it is encoded, and without any
        self.num_read = 0  # how many of these the runner has read
        self.num_texts = 0  # how many texts of the prompt the runner has read, where texts are pooled
        self.num_cached = 0  # tokens of the prompt from a cached prefix
        # Tokens of the prompt whose log probabilities are done; the very first has none.
        self.num_scored = 1
        self.batched = False  # whether it runs in the batch, or on the generator's runner
        # Whether another thread is choosing its next token; it takes part in no step until then.
        self.is_choosing = False
        # Whether another thread is loading its prefix; it takes part in no step until then.
        self.is_loading = False
        # Finds the text of earlier answers, from which its drafts may come; None without one.
        self.earlier_answers: FindText | None = None
        self.num_drafted = 0  # draft tokens that passes have verified
        self.num_accepted = 0  # draft tokens that were accepted
        self.num_preemptions = 0  # how often it has given its slot up for others
        self.was_interrupted = False  # whether its last chunk was interrupted, and none has been read since
        self.profile = SequenceProfile()
        self._clock = clock
        self._arrived = clock()
        # The clock's time at which the answer ends with the tokens it has.
        self.deadline = math.inf if request.timeout is None else self._arrived + request.timeout
        self._started: float | None = None
        self._first: float | None = None
        self.last: float | None = None  # when the last token came, by the clock; None before the first

    @cached_property
    def text_drafts(self) -> TextDrafts:
        """Source of drafts from texts for this sequence, made when first used because many sequences have no drafts."""
        return TextDrafts(self.prompt, self.request.prediction, self.earlier_answers)

    @property
    def cache_salt(self) -> str | None:
        """Cache salt: only sequences with equal salts share cached prefixes.

        For speech recognition, the salt is the digest of the recording, from which all that the decoder reads is
        derived. Otherwise it is the `cache_salt` of the request. The digest of the adapter's file is added, because the
        KV cache depends on the adapter. The adapter's id would not do, since each load makes a new one.
        """
        salt = self.request.cache_salt if self.request.sound is None else self.request.sound.digest
        return salt if self.adapter is None else f"{salt or ''}:{self.adapter.digest}"

    @property
    def adapter_name(self) -> str | None:
        """Name by which the request has chosen an adapter; None without one."""
        return None if self.request.adapter is None else self.request.adapter.name

    @cached_property
    def prompt_key(self) -> int:
        """Hash that is equal for equal prompts with equal cache salts.

        Must not be read before the images of the prompt are encoded.
        """
        return hash((self.cache_salt, *self.prompt))

    def gives_prompt(self, other: "Sequence") -> bool:
        """Whether `other` should wait until this sequence has read its prompt, to reuse the KV cache of the prompt.

        That is so if both have the same prompt and tenant, and `other` is not more urgent.
        """
        return (
            self.reuses_past
            and other.reuses_past
            and self.num_produced == 0
            and self.tenant == other.tenant
            and (self.low_priority, *self._urgency) <= (other.low_priority, *other._urgency)
            and self.prompt_key == other.prompt_key
        )

    @property
    def _urgency(self) -> tuple[int, int]:
        return self.request.precedence, self.request.priority

    def take(self, encoded: PromptImages | EncodedAudio) -> None:
        """Set the encoded images or audio of the request, before anything of the prompt is read."""
        if isinstance(encoded, EncodedAudio):
            self.audio = encoded
            return
        self.images, self.prompt = encoded, encoded.prompt
        self.tokens = list(encoded.prompt)

    @property
    def age(self) -> float:
        """Seconds since the request's arrival."""
        return self._clock() - self._arrived

    @property
    def num_produced(self) -> int:
        """Number of tokens of the answer so far."""
        return len(self.tokens) - len(self.request.prompt)

    @property
    def num_unread(self) -> int:
        """Number of tokens that the runner has not read yet."""
        return len(self.tokens) - self.num_read

    @property
    def num_pooled(self) -> int:
        """Number of tokens of the pooled texts that the runner has read and whose vectors have been sent."""
        return sum(text.num_tokens for text in self.request.texts[: self.num_texts])

    @property
    def is_decoding(self) -> bool:
        """Whether only the last produced token is unread."""
        return self.num_unread <= 1 and self.num_produced > 0

    @property
    def shares_passes(self) -> bool:
        """Whether the sequence is in the batch and not profiled, so that it can share passes with other sequences."""
        return self.batched and not self.profile.is_on

    @property
    def wants_positions(self) -> bool:
        """Whether logits after each token of the prompt are still wanted, to compute the prompt's log probabilities."""
        return self.request.prompt_logprobs and self.num_scored < len(self.request.prompt)

    @property
    def num_left(self) -> int:
        """Number of tokens that may still be produced."""
        return max(0, self.max_length - len(self.tokens))

    def is_named(self, name: str) -> bool:
        """Whether `name` is the id that the server gave the request, or the one that the client gave it."""
        return name in (self.request.own_id, self.request.request_id)

    @property
    def low_priority(self) -> bool:
        """Whether the sequence takes only what other sequences leave of the device, as requests of batch jobs do."""
        return self.request.low_priority

    @property
    def tenant(self) -> str:
        """Identifies the API key. The device is shared equally between tenants."""
        return self.request.tenant

    def preempt(self) -> None:
        """Return a running sequence to the waiting ones, with no token counted as read.

        When the sequence is opened again, those of its tokens that are still in the KV cache are found there.
        """
        self.state = SequenceState.WAITING
        self.num_read = 0
        self.num_preemptions += 1

    def start(self) -> None:
        """Record the current time as the start of the sequence's first pass, if none has started."""
        if self._started is None:
            self._started = self._clock()

    def append(self, token: int) -> None:
        """Add a produced token."""
        self.tokens.append(token)
        self.last = self._clock()
        if self._first is None:
            self._first = self.last

    def describe(self) -> RequestState:
        """Entry of the sequence in the admin API's list of requests."""
        started = RequestPhase.DECODE if self.num_produced else RequestPhase.PREFILL
        phase = started if self.state is SequenceState.RUNNING else RequestPhase.QUEUED
        prompt = len(self.request.prompt)
        adapter = self.adapter_name
        return RequestState(
            self.request.request_id,
            phase,
            self.age,
            prompt,
            self.num_cached,
            self.num_produced,
            adapter,
            self.request.own_id,
            self.low_priority,
            self.request.key_name,
        )

    def phases(self) -> Phases:
        """Seconds spent in each phase so far."""
        now = self._clock()
        started = now if self._started is None else self._started
        first = now if self._first is None else self._first
        last = first if self.last is None else self.last
        return Phases(queue=started - self._arrived, prefill=first - started, decode=last - first)


def common_length(one: list[int], other: list[int]) -> int:
    """Number of equal tokens at the beginning of two lists."""
    same, different = 0, min(len(one), len(other)) + 1
    while different - same > 1:
        middle = (same + different) // 2
        if one[same:middle] == other[same:middle]:  # much faster than a Python loop
            same = middle
        else:
            different = middle
    return same
