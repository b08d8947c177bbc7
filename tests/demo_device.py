"""A device with the demo model: an engine loop stepped by hand, and its messages."""

import asyncio
import time
from functools import cache
from pathlib import Path
from typing import Any

from genai_server.engine.runners.loaded_model import LoadedModel
from genai_server.engine.sampling.grammar import Guidance
from genai_server.engine.scheduling.drafts import AnswerMemory
from genai_server.engine.scheduling.scheduler import Scheduler
from genai_server.engine.scheduling.scheduler_output import StepPolicy
from genai_server.messages.engine_protocol import PromptLogprobs, Tokens
from genai_server.messages.generation_request import TokenLogprob
from genai_server.text.codec import load_text_codec
from genai_server.timing import Clock
from tests.running_server import DEMO
from tests.stepped_loop import SteppedLoop

MAX_LENGTH = 512


@cache
def prompt(text: str) -> list[int]:
    return asyncio.run(load_text_codec(DEMO, "cpu").encode_chat([{"role": "user", "content": text}])).tokens


class DemoDevice(SteppedLoop):
    """A loop with at most six running requests."""

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
        policy = StepPolicy(speculates=speculates, answers=answers)
        scheduler = Scheduler(loaded.main, max_running=6, max_waiting=6, prefill_chunk=24, policy=policy)
        super().__init__(loaded, scheduler, guidance, folder, clock=clock)

    def submit(self, key: int, text: str, **fields: Any) -> None:
        self.put_request(key, prompt(text), **{"max_tokens": 60, "max_length": MAX_LENGTH} | fields)

    def answer(self, key: int, text: str, **fields: Any) -> list[int]:
        """The tokens of an answer."""
        self.submit(key, text, **fields)
        self.run(key)
        return self.tokens(key)

    def run_to(self, key: int, num_tokens: int) -> None:
        """Step until an answer has this number of tokens."""
        self.step_until(lambda: len(self.tokens(key)) >= num_tokens)

    def logprobs(self, key: int) -> list[TokenLogprob]:
        return [logprob for message in self.messages(Tokens, key) for logprob in message.logprobs]

    def prompt_logprobs(self, key: int) -> list[TokenLogprob]:
        return [logprob for message in self.messages(PromptLogprobs, key) for logprob in message.logprobs]

    def text(self, key: int) -> str:
        return load_text_codec(DEMO, "cpu").tokenizer.decoder().decode(self.tokens(key))
