"""An engine's loop in the script's own process, and how fast it answers requests."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from genai_server.engine.api_connections import Connected
from genai_server.engine.loop import EngineLoop
from genai_server.engine.profiling.profile_files import ProfileFolder
from genai_server.engine.profiling.runtime_options import RuntimeOptionState
from genai_server.engine.runners.loaded_model import LoadedModel, RunnerPair
from genai_server.engine.runners.sequence_limits import IDLE_CHUNK
from genai_server.engine.sampling.grammar import Guidance
from genai_server.engine.scheduling.drafts import AnswerMemory
from genai_server.engine.scheduling.scheduler import Scheduler
from genai_server.engine.scheduling.scheduler_output import StepPolicy
from genai_server.messages.engine_protocol import Failed, Finished, Submit, ToApi, Tokens
from genai_server.messages.generation_request import GenerationRequest
from genai_server.timing import Clock

API = 1


@dataclass(frozen=True)
class Answered:
    """The answers to requests that were sent at once."""

    tokens: list[list[int]]
    ends: list[Finished]
    # Once each answer had its first token: tokens per second, and per second of the process's processor time.
    per_second: float
    per_cpu_second: float


def open_loop(
    loaded: LoadedModel,
    guidance: Guidance,
    folder: Path,
    send: Callable[[int, list[ToApi]], None],
    policy: StepPolicy | None = None,
    clock: Clock = time.perf_counter,
    **limits: int,
) -> tuple[EngineLoop, Scheduler]:
    """An engine's loop that a caller steps, and its scheduler, with other `limits` of it.

    What the engine tells an API process goes to `send`.
    """
    usual = {"max_running": loaded.main.abilities.max_rows, "max_waiting": 0, "prefill_chunk": IDLE_CHUNK}
    scheduler = Scheduler(loaded.main, idle_chunk=IDLE_CHUNK, policy=policy or StepPolicy(), **(usual | limits))
    runners = RunnerPair(loaded)
    options = RuntimeOptionState(runners, ProfileFolder(folder, "cpu", max_files=1, max_bytes=1))
    loop = EngineLoop(runners, scheduler, options, guidance, send, clock=clock)
    loop.inbox.put((API, Connected()))
    return loop, scheduler


class Engine:
    """An engine's loop in this process; each has its own scheduler, which learns what passes cost."""

    def __init__(
        self,
        loaded: LoadedModel,
        guidance: Guidance,
        folder: Path,
        *,
        speculates: bool = False,
        answers: AnswerMemory | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        self._sent: list[ToApi] = []
        self._keys = count()
        policy = StepPolicy(speculates=speculates, answers=answers)
        self._loop, _ = open_loop(
            loaded, guidance, folder, lambda _, messages: self._sent.extend(messages), policy, clock
        )

    def answer(self, requests: list[GenerationRequest]) -> Answered:
        """Answer requests that come at once."""
        self._sent.clear()
        tokens: dict[int, list[int]] = {}
        for request in requests:
            tokens[key := next(self._keys)] = []
            self._loop.inbox.put((API, Submit(key, request)))
        ends: list[Finished] = []
        num_before = 0
        first, cpu_first = 0.0, 0.0
        while len(ends) < len(requests):
            self._loop.run_one_step()
            for message in self._sent:
                if isinstance(message, Tokens):
                    tokens[message.key] += message.tokens
                elif isinstance(message, Finished):
                    ends.append(message)
                elif isinstance(message, Failed):
                    raise SystemExit(message.error.message)
            self._sent.clear()
            if not first and all(tokens.values()):
                num_before = sum(map(len, tokens.values()))
                first, cpu_first = time.perf_counter(), time.process_time()
        seconds, cpu_seconds = time.perf_counter() - first, time.process_time() - cpu_first
        num_tokens = sum(map(len, tokens.values())) - num_before
        return Answered(list(tokens.values()), ends, num_tokens / seconds, num_tokens / cpu_seconds)
