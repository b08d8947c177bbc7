"""A library with `og.Engine` in Python that does what the real one does only on GPUs: it batches dynamically, reads
prompts in chunks, and runs out of memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import Any, cast

from genai_server.engine.abilities import Abilities
from genai_server.engine.runners.og_generator import OgGeneratorRunner
from genai_server.messages.generation_request import ModelInfo, Sampling

EOS = 0


class FinishReason(Enum):
    NONE, EOS, MAX_GENERATED_TOKENS, FAILED = range(4)


class EngineErrorCode(Enum):
    (
        NONE,
        CAPACITY_DEFERRED,
        EXECUTION_CAPACITY_EXCEEDED,
        REQUEST_UNSERVICEABLE,
        ENGINE_CONTRACT_FAILURE,
        ENGINE_EXECUTION_FAILURE,
    ) = range(6)


@dataclass(frozen=True)
class Event:
    request: Request
    token: int | None = None
    finish_reason: FinishReason = FinishReason.NONE
    error_code: EngineErrorCode = EngineErrorCode.NONE


class Options:
    """Stores the arguments of each setter by its name."""

    def __init__(self, *_: Any) -> None:
        self.given: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return lambda *values: self.given.__setitem__(name.removeprefix("set_"), values[0])


class Request:
    def __init__(self, queue: list[Request]) -> None:
        self.queue = queue
        self.unread = self.left = self.produced = 0
        self.options: dict[str, Any] = {}

    def begin_turn(self, tokens: Any, options: Options) -> int:
        self.unread, self.options = len(tokens), options.given
        self.left = self.options["max_generated_tokens"]
        self.queue.append(self)
        return 1

    def cancel_turn(self, number: int) -> bool:
        assert number == 1
        return True

    def close(self) -> None:
        if self in self.queue:
            self.queue.remove(self)


@dataclass
class FakeLibrary:
    """The number of tokens that a run reads of each prompt, the maximum number of rows, the number of sequences that
    fit in memory, and the number of next runs that fail.

    The tokens of a turn are 1, 2, 3 and so on.
    """

    chunk: int = 1000
    max_rows: int = 8
    max_length: int = 0
    memory_for: int = 1000
    num_failing: int = 0
    cannot_start: bool = False
    alive: int = 0
    max_alive: int = 0
    rows: list[int] = field(default_factory=list)

    FinishReason = FinishReason
    EngineErrorCode = EngineErrorCode
    RequestOptions = Options
    TurnOptions = Options

    def Engine(self, model: object) -> FakeEngine:
        if self.cannot_start:
            raise RuntimeError("out of memory")
        return FakeEngine(self)


class FakeEngine:
    def __init__(self, library: FakeLibrary) -> None:
        self.library = library
        self.requests: list[Request] = []
        library.alive += 1
        library.max_alive = max(library.max_alive, library.alive)

    def __del__(self) -> None:
        self.library.alive -= 1

    def get_capabilities(self) -> Any:
        library = self.library
        return SimpleNamespace(
            configured_max_batch_size=library.max_rows, max_scheduled_tokens=2048, max_request_length=library.max_length
        )

    def create_event_buffer(self, capacity: int) -> object:
        return object()

    def create_request(self, options: Options) -> Request:
        return Request(self.requests)

    def has_pending_requests(self) -> bool:
        return bool(self.requests)

    def run(self, events: object) -> list[Event]:
        if self.library.num_failing:
            self.library.num_failing -= 1
            return [Event(request, error_code=EngineErrorCode.ENGINE_EXECUTION_FAILURE) for request in self.requests]
        fitting, deferred = self.requests[: self.library.memory_for], self.requests[self.library.memory_for :]
        self.library.rows.append(len(fitting))
        found = [Event(request, error_code=EngineErrorCode.CAPACITY_DEFERRED) for request in deferred]
        for request in list(fitting):
            request.unread = max(0, request.unread - self.library.chunk)
            if request.unread:
                continue
            request.produced += 1
            request.left -= 1
            end = FinishReason.NONE if request.left else FinishReason.MAX_GENERATED_TOKENS
            found.append(Event(request, request.produced, end))
            if not request.left:
                self.requests.remove(request)
        return found


def fake_generator(library: FakeLibrary, **search: Any) -> OgGeneratorRunner:
    """The parts of a generator that a LibraryBatch needs."""
    model = ModelInfo(context_length=1000, vocab_size=500, eos_token_ids=[EOS], defaults=Sampling(**search))
    parts = {"library": library, "library_model": None, "model": model, "nodes": {"cuda": None}}
    return cast(OgGeneratorRunner, SimpleNamespace(**parts, abilities=Abilities("generator", adapters=True)))
