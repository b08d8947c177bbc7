"""An engine loop that is stepped by hand, and the messages that it sent."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from genai_server.engine.api_connections import Connected
from genai_server.engine.loop import EngineLoop
from genai_server.engine.profiling.profile_files import ProfileFolder
from genai_server.engine.profiling.runtime_options import RuntimeOptionState
from genai_server.engine.runners.loaded_model import LoadedModel, RunnerPair
from genai_server.engine.sampling.grammar import Guidance
from genai_server.engine.scheduling.scheduler import Scheduler
from genai_server.messages.engine_protocol import Failed, Finished, Refused, Submit, ToApi, Tokens
from genai_server.messages.frames import ErrorInfo
from genai_server.messages.generation_request import FinishReason, GenerationRequest

API = 1
OTHER_API = 2

Kind = TypeVar("Kind")


class SteppedLoop:
    """A loop without threads and sockets."""

    def __init__(
        self,
        loaded: LoadedModel,
        scheduler: Scheduler,
        guidance: Guidance,
        folder: Path,
        *,
        device: str = "cpu",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        # Each message with the API process that it is for.
        self.sent: list[tuple[int, ToApi]] = []
        self.scheduler = scheduler
        profiles = ProfileFolder(folder, device, max_files=100, max_bytes=10**8)
        runners = RunnerPair(loaded)
        options = RuntimeOptionState(runners, profiles)
        self.loop = EngineLoop(runners, scheduler, options, guidance, self._receive, clock=clock)
        self.put(Connected())

    def _receive(self, connection: int, messages: list[ToApi]) -> None:
        self.sent += ((connection, message) for message in messages)

    def put(self, message: Any, connection: int = API) -> None:
        """Send the loop a message."""
        self.loop.inbox.put((connection, message))

    def put_request(
        self, key: int, prompt: list[int], connection: int = API, *, more: bool = False, **fields: Any
    ) -> None:
        """Submit a request named after its key; `more` if the group of requests continues."""
        fields = {"request_id": f"r{key}"} | fields
        self.put(Submit(key, GenerationRequest(prompt=prompt, **fields), more), connection)

    def steps(self, number: int) -> None:
        for _ in range(number):
            self.loop.run_one_step()

    def step_until(self, condition: Callable[[], bool]) -> None:
        """Fails after 30 seconds."""
        end = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < end
            if self.loop.inbox.empty() and self.scheduler.is_idle:
                time.sleep(0.001)  # a step would block; a thread is compiling a grammar
            else:
                self.steps(1)

    def run(self, *keys: int) -> None:
        """Step until these requests have ended or are refused; without keys, until there is nothing to do."""
        if not keys:
            self.steps(1)
            while not self.scheduler.is_idle:
                self.steps(1)
        ends = Refused | Finished | Failed
        self.step_until(lambda: set(keys) <= {message.key for _, message in self.sent if isinstance(message, ends)})

    def ask(self, question: Any, reply: type[Kind], connection: int = API) -> Kind:
        """Step once; returns the reply to a call of an operator."""
        self.put(question, connection)
        self.steps(1)
        (found,) = (
            message
            for to, message in self.sent
            if to == connection and isinstance(message, reply) and getattr(message, "call", None) == question.call
        )
        return found

    def messages(self, kind: type[Kind], key: int | None = None) -> list[Kind]:
        """The messages of this kind, about all requests or one."""
        found = (message for _, message in self.sent if isinstance(message, kind))
        return [message for message in found if key is None or getattr(message, "key", None) == key]

    def of(self, key: int) -> list[ToApi]:
        """The messages about one request, with consecutive tokens joined and without their log probabilities."""
        found: list[ToApi] = []
        for _, message in self.sent:
            if getattr(message, "key", None) != key:
                continue
            if found and isinstance(message, Tokens) and isinstance(last := found[-1], Tokens):
                found[-1] = Tokens(key, last.tokens + message.tokens)
            else:
                found.append(message)
        return found

    def kinds(self, key: int) -> list[type[ToApi]]:
        """The kinds of the messages about one request; consecutive tokens are one message."""
        return [type(message) for message in self.of(key)]

    def tokens(self, key: int) -> list[int]:
        return [token for message in self.messages(Tokens, key) for token in message.tokens]

    def ends(self, key: int) -> list[Finished | Failed]:
        return [message for _, message in self.sent if isinstance(message, Finished | Failed) and message.key == key]

    def end(self, key: int) -> Finished:
        """The only end of a request that did not fail."""
        (end,) = self.ends(key)
        assert isinstance(end, Finished), end
        return end

    def reason(self, key: int) -> FinishReason:
        return self.end(key).reason

    def failure(self, key: int) -> ErrorInfo:
        """The error that ended a request."""
        (end,) = self.ends(key)
        assert isinstance(end, Failed)
        return end.error

    def refusal(self, key: int) -> ErrorInfo:
        """The error of a request about which nothing else was sent."""
        (refused,) = self.of(key)
        assert isinstance(refused, Refused)
        return refused.error
