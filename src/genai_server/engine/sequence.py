"""A sequence (`Sequence`): one request as the engine works on it. Also its states (`SequenceState`), its profiling
(`SequenceProfile`), and a function that compares the tokens of two sequences.
"""

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
    """A loaded LoRA adapter. It stays in memory until an operator has unloaded it and no sequence uses it any more."""

    # SHA-256 of the adapter's file, which is part of the cache salt because keys and values depend on the adapter.
    digest: str
    # The object that `Runner.load_adapter` has returned.
    loaded: Any


class SequenceState(StrEnum):
    """The states of a sequence, from the arrival of its request to its end. PREPARING may be left out, and a running
    sequence that is preempted waits again.
    """

    PREPARING = "preparing"  # not accepted yet; worker threads compile its grammar or encode its inputs
    WAITING = "waiting"  # accepted, and ready to run
    RUNNING = "running"  # has a slot on the device
    ENDED = "ended"  # has left the table of requests


class SequenceProfile:
    """Whether a sequence is profiled, and with which prefix of the profiles' file names. Each sequence has one;
    profiling is off at first, when the prefix is None.
    """

    def __init__(self) -> None:
        self.prefix: str | None = None  # to be used for the next passes
        self.active: str | None = None  # set in the runner
        self.from_token = 0  # the first profiled output token
        self.num_tokens = 0  # profiled tokens
        self.left_out = False  # not selected when the device is profiled
        self.is_awaited = (
            False  # soon to be profiled; until then without drafts, which could skip the first token to profile
        )

    @property
    def is_on(self) -> bool:
        """Whether the sequence's next pass is to be profiled."""
        return self.prefix is not None

    def switch(self, prefix: str | None, next_token: int) -> None:
        """Profile the sequence from output token number `next_token` on, with `prefix` as the beginning of the file
        names; None stops profiling.
        """
        if self.prefix is None or prefix is None:
            self.from_token = next_token
        self.prefix = prefix


class Sequence:
    """A request as the engine works on it: its tokens, its state, and how far the model has read it.

    Admission, the part of the engine that accepts requests, creates it when the request arrives; the scheduler, a
    runner and the sampler then advance it to its end. `SequenceState` has its states.
    """

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
        # The most tokens that the sequence may have, prompt included.
        self.max_length = min(request.max_length, len(request.prompt) + request.max_tokens)
        self.sampler = Sampler(request.sampling, request.prompt)
        self.guide = guide  # the grammar's state; None without a grammar
        self.reasoning: ReasoningTracker | None = None  # ends the reasoning; None if the model has no known format
        self.adapter = adapter  # None without one
        self.reuses_past = reuses_past  # whether it may reuse a cached prefix
        self.state = SequenceState.WAITING
        self.num_preparations = 0  # results for it that worker threads have not delivered yet
        self.tokens = list(request.prompt)  # the tokens of the prompt and of the answer
        self._num_prompt = len(request.prompt)
        # The prompt, with ids of their own for the features of images.
        self.prompt = request.prompt
        self.images: PromptImages | None = None  # until they are encoded, and without any
        self.audio: EncodedAudio | None = None  # until it is encoded, and without any
        self.num_read = 0  # how many of `tokens` the runner has read
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
        """The source of drafts from texts for this sequence (speculative decoding). It is created at its first use,
        because many sequences have no drafts.
        """
        return TextDrafts(self.prompt, self.request.prediction, self.earlier_answers)

    @property
    def cache_salt(self) -> str | None:
        """Text that separates cached prefixes: only sequences with equal salts share them. None if there is no salt.

        In transcription it is the digest of the recording, on which everything that the decoder reads depends;
        otherwise it is the request's `cache_salt`. If the sequence has an adapter, the digest of the adapter's file is
        added, because the KV cache depends on it. The adapter's id would not do, because it is different each time the
        same file is loaded.
        """
        salt = self.request.cache_salt if self.request.sound is None else self.request.sound.digest
        return salt if self.adapter is None else f"{salt or ''}:{self.adapter.digest}"

    @property
    def adapter_name(self) -> str | None:
        """Name of the LoRA adapter that the request has chosen; None if it has chosen none."""
        return None if self.request.adapter is None else self.request.adapter.name

    @cached_property
    def prompt_key(self) -> int:
        """Hash of the prompt and the cache salt, by which sequences with equal prompts are found. Must not be read
        before the prompt's images are encoded, because these change the prompt's token ids.
        """
        return hash((self.cache_salt, *self.prompt))

    def provides_prompt_to(self, other: "Sequence") -> bool:
        """Return whether the sequence `other` should wait until this sequence has read its prompt, and then reuse the
        prompt's KV cache.

        That is so if both have the same prompt and tenant (API key), this one has no output token yet, and `other` is
        not more urgent.
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
        """Set the encoded images or audio of the request, which a worker thread has computed. Must be called before the
        model reads any of the prompt.
        """
        if isinstance(encoded, EncodedAudio):
            self.audio = encoded
            return
        self.images, self.prompt = encoded, encoded.prompt
        self.tokens = list(encoded.prompt)

    @property
    def age(self) -> float:
        """Seconds since the request arrived."""
        return self._clock() - self._arrived

    @property
    def num_produced(self) -> int:
        """Number of tokens of the answer so far."""
        return len(self.tokens) - self._num_prompt

    @property
    def num_unread(self) -> int:
        """Number of tokens, of the prompt and the answer, that the model has not read yet."""
        return len(self.tokens) - self.num_read

    @property
    def num_pooled(self) -> int:
        """Number of tokens in those texts of the request whose vectors or scores the model has computed."""
        return sum(text.num_tokens for text in self.request.texts[: self.num_texts])

    @property
    def is_decoding(self) -> bool:
        """Whether the prompt is read, so that the model only generates: no more than the newest token of the answer is
        unread.
        """
        num_tokens = len(self.tokens)
        return num_tokens - self.num_read <= 1 and num_tokens > self._num_prompt

    @property
    def shares_passes(self) -> bool:
        """Whether the sequence runs in the batch and is not profiled, so that a forward pass can read it together with
        other sequences.
        """
        return self.batched and not self.profile.is_on

    @property
    def wants_positions(self) -> bool:
        """Whether forward passes must still return the logits after every token that they read of the prompt, and not
        only after the last one, because the request asks for the prompt's log probabilities.
        """
        return self.request.prompt_logprobs and self.num_scored < len(self.request.prompt)

    @property
    def num_left(self) -> int:
        """Number of tokens that the answer may still get before its maximum length is reached."""
        return max(0, self.max_length - len(self.tokens))

    def is_named(self, name: str) -> bool:
        """Return whether `name` is an id of the request: the unique one that the server has given it, or the client's
        own.
        """
        return name in (self.request.own_id, self.request.request_id)

    @property
    def low_priority(self) -> bool:
        """Whether the sequence gets only the capacity that other sequences leave, as requests of batch jobs do."""
        return self.request.low_priority

    @property
    def tenant(self) -> str:
        """Identifier of the request's API key. All tenants (API keys) get an equal share of the device."""
        return self.request.tenant

    def preempt(self) -> None:
        """Make a running sequence wait again, with none of its tokens counted as read. The caller frees its KV cache
        slot.

        When the sequence runs again, tokens whose KV cache is still in memory need not be read a second time.
        """
        self.state = SequenceState.WAITING
        self.num_read = 0
        self.num_preemptions += 1

    def start(self) -> None:
        """Record the current time as the start of the sequence's first pass, if no start was recorded before."""
        if self._started is None:
            self._started = self._clock()

    def append(self, token: int) -> None:
        """Add `token`, a token id, to the answer, and record the time."""
        self.tokens.append(token)
        self.last = self._clock()
        if self._first is None:
            self._first = self.last

    def describe(self) -> RequestState:
        """Return the description of this sequence for the admin API's list of requests: its ids, its phase, its age and
        its numbers of tokens.
        """
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
        """Return how many seconds the sequence has spent so far in each phase: waiting, reading the prompt, and
        decoding.
        """
        now = self._clock()
        started = now if self._started is None else self._started
        first = now if self._first is None else self._first
        last = first if self.last is None else self.last
        return Phases(queue=started - self._arrived, prefill=first - started, decode=last - first)


def common_prefix_length(first: list[int], second: list[int]) -> int:
    """Return the number of equal tokens at the beginning of two lists of token ids."""
    equal, different = 0, min(len(first), len(second)) + 1
    while different - equal > 1:
        middle = (equal + different) // 2
        if first[equal:middle] == second[equal:middle]:  # much faster than a Python loop
            equal = middle
        else:
            different = middle
    return equal
