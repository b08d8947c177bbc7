"""A device with the demo model: an engine loop stepped by hand, and its messages."""

import asyncio
import time
from functools import cache
from pathlib import Path
from typing import Any

from genai_server.engine.ipc.mailbox import Connected
from genai_server.engine.loop import EngineLoop
from genai_server.engine.profiling.folder import ProfileFolder
from genai_server.engine.profiling.runtime_options import RuntimeOptionState
from genai_server.engine.runners.runner_pair import RunnerPair
from genai_server.engine.sampling.grammar import Guidance
from genai_server.engine.scheduling.scheduler import Scheduler
from genai_server.engine.scheduling.step import StepPolicy
from genai_server.messages.generation_request import FinishReason, GenerationRequest, TokenLogprob
from genai_server.messages.protocol import Failed, Finished, PromptLogprobs, Submit, ToApi, Tokens
from genai_server.text.codec import load_text_codec
from tests.loop_steps import step_or_wait
from tests.running_server import DEMO

API = 1
MAX_LENGTH = 512


@cache
def prompt(text: str) -> list[int]:
    return asyncio.run(load_text_codec(DEMO, "cpu").encode_chat([{"role": "user", "content": text}]))


def decoded(tokens: list[int]) -> str:
    return load_text_codec(DEMO, "cpu").tokenizer.decoder().decode(tokens)


class DemoDevice:
    """A loop, and the messages that it sent about each request."""

    def __init__(self, runners: RunnerPair, guidance: Guidance, folder: Path, *, speculates: bool = False) -> None:
        self.sent: list[ToApi] = []
        policy = StepPolicy(speculates=speculates)
        self.scheduler = Scheduler(runners.main, max_running=6, max_waiting=6, prefill_chunk=24, policy=policy)
        folders = ProfileFolder(folder, "cpu", max_files=100, max_bytes=10**8)
        self.loop = EngineLoop(
            runners,
            self.scheduler,
            RuntimeOptionState(runners, folders),
            guidance,
            lambda _, messages: self.sent.extend(messages),
        )
        self.inbox = self.loop.inbox
        self.inbox.put((API, Connected()))

    def submit(self, key: int, text: str, *, more: bool = False, **fields: Any) -> None:
        values: dict[str, Any] = {"request_id": f"r{key}", "max_tokens": 60, "max_length": MAX_LENGTH} | fields
        self.inbox.put((API, Submit(key, GenerationRequest(prompt=prompt(text), **values), more)))

    def step(self) -> None:
        step_or_wait(self.loop, self.scheduler)

    def run(self, *keys: int) -> None:
        end = time.monotonic() + 30
        while not set(keys) <= {m.key for m in self.sent if isinstance(m, Finished | Failed)}:
            assert time.monotonic() < end
            self.step()

    def tokens(self, key: int) -> list[int]:
        return [token for m in self.sent if isinstance(m, Tokens) and m.key == key for token in m.tokens]

    def logprobs(self, key: int) -> list[TokenLogprob]:
        return [logprob for m in self.sent if isinstance(m, Tokens) and m.key == key for logprob in m.logprobs]

    def prompt_logprobs(self, key: int) -> list[TokenLogprob]:
        return [logprob for m in self.sent if isinstance(m, PromptLogprobs) and m.key == key for logprob in m.logprobs]

    def text(self, key: int) -> str:
        return decoded(self.tokens(key))

    def end(self, key: int) -> Finished:
        (end,) = [m for m in self.sent if isinstance(m, Finished | Failed) and m.key == key]
        assert isinstance(end, Finished), end
        return end

    def reason(self, key: int) -> FinishReason:
        return self.end(key).reason
