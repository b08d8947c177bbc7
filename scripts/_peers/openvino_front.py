"""Serves a model of OpenVINO GenAI with the part of OpenAI's chat completions that a benchmark needs.

Run with the interpreter of OpenVINO's environment, which has nothing of genai-server's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import queue
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import openvino
import openvino_genai
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

_CACHE_GB = 4


@dataclass
class Sequence:
    """A prompt, and the tokens of its answer as they come."""

    prompt: list[int]
    config: openvino_genai.GenerationConfig
    loop: asyncio.AbstractEventLoop
    # Lists of new tokens; None follows the last.
    answer: asyncio.Queue[list[int] | None] = field(default_factory=asyncio.Queue)

    def deliver(self, tokens: list[int] | None) -> None:
        """Add tokens to the answer, from the engine's thread."""
        self.loop.call_soon_threadsafe(self.answer.put_nowait, tokens)


class Engine:
    """Runs the pipeline in a separate thread, for all sequences together. New ones are put into `submitted`."""

    def __init__(self, pipeline: openvino_genai.ContinuousBatchingPipeline) -> None:
        self.submitted: queue.SimpleQueue[Sequence] = queue.SimpleQueue()
        self._pipeline = pipeline
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        running: list[tuple[Any, Sequence]] = []
        number = 0
        while True:
            for sequence in self._arrivals(wait=not running):
                prompt = openvino.Tensor(np.array([sequence.prompt], dtype=np.int64))
                running.append((self._pipeline.add_request(number, prompt, sequence.config), sequence))
                number += 1
            self._pipeline.step()
            for handle, sequence in list(running):
                while handle.can_read():
                    for output in handle.read().values():
                        sequence.deliver(list(output.generated_ids))
                if handle.get_status() != openvino_genai.GenerationStatus.RUNNING:
                    running.remove((handle, sequence))
                    sequence.deliver(None)

    def _arrivals(self, *, wait: bool) -> Iterator[Sequence]:
        if wait:
            yield self.submitted.get()
        while not self.submitted.empty():
            yield self.submitted.get()


def application(engine: Engine, model: Path) -> Starlette:
    """Answers any GET with an empty object, any POST with a streamed chat completion."""
    tokenizer: Tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    template = jinja2.Environment().from_string((model / "chat_template.jinja").read_text(encoding="utf-8"))

    async def ready(_: Request) -> JSONResponse:
        return JSONResponse({})

    async def complete(request: Request) -> StreamingResponse:
        body = await request.json()
        text = template.render(messages=body["messages"], add_generation_prompt=True)
        config = openvino_genai.GenerationConfig(
            max_new_tokens=body["max_tokens"], ignore_eos=body["ignore_eos"], do_sample=False
        )
        prompt = tokenizer.encode(text, add_special_tokens=False).ids
        sequence = Sequence(prompt, config, asyncio.get_running_loop())
        engine.submitted.put(sequence)
        return StreamingResponse(events(sequence), media_type="text/event-stream")

    async def events(sequence: Sequence) -> AsyncIterator[str]:
        text_of = DecodeStream(skip_special_tokens=False)
        num_output = 0
        while (tokens := await sequence.answer.get()) is not None:
            num_output += len(tokens)
            text = "".join(text_of.step(tokenizer, token) or "" for token in tokens)
            yield _event({"choices": [{"index": 0, "delta": {"content": text}}]})
        yield _event({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
        usage = {"prompt_tokens": len(sequence.prompt), "completion_tokens": num_output}
        yield _event({"choices": [], "usage": usage})
        yield "data: [DONE]\n\n"

    return Starlette(routes=[Route("/{path:path}", ready), Route("/{path:path}", complete, methods=["POST"])])


def _event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content)}\n\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    for option in ("--port", "--threads", "--slots"):
        parser.add_argument(option, type=int, required=True)
    arguments = parser.parse_args()
    scheduling = openvino_genai.SchedulerConfig()
    scheduling.cache_size = _CACHE_GB
    scheduling.max_num_seqs = arguments.slots
    scheduling.enable_prefix_caching = True
    pipeline = openvino_genai.ContinuousBatchingPipeline(
        arguments.model, scheduling, "CPU", {"INFERENCE_NUM_THREADS": arguments.threads}
    )
    uvicorn.run(application(Engine(pipeline), arguments.model), port=arguments.port, log_level="warning")


if __name__ == "__main__":
    main()
