"""Serves a model of OpenVINO GenAI with the part of OpenAI's chat completions that a benchmark needs.

Run with the interpreter of OpenVINO's environment, which has nothing of genai-server's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import openvino
import openvino_genai
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

HOST = "127.0.0.1"
_CACHE_GB = 4
_JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n{}"
_EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


@dataclass
class Request:
    """A prompt, and the tokens of its answer as they come."""

    prompt: list[int]
    config: openvino_genai.GenerationConfig
    # Lists of new tokens; None follows the last.
    answer: asyncio.Queue[list[int] | None] = field(default_factory=asyncio.Queue)


class Engine:
    """Runs the pipeline in a separate thread, for all requests together."""

    def __init__(self, pipeline: openvino_genai.ContinuousBatchingPipeline, loop: asyncio.AbstractEventLoop) -> None:
        self._pipeline = pipeline
        self._loop = loop
        self._submitted: queue.SimpleQueue[Request] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def submit(self, request: Request) -> None:
        """Add a request to the next step."""
        self._submitted.put(request)

    def _run(self) -> None:
        running: list[tuple[Any, Request]] = []
        number = 0
        while True:
            for request in self._arrivals(wait=not running):
                prompt = openvino.Tensor(np.array([request.prompt], dtype=np.int64))
                running.append((self._pipeline.add_request(number, prompt, request.config), request))
                number += 1
            self._pipeline.step()
            news: list[tuple[Request, list[int] | None]] = []
            for handle, request in list(running):
                while handle.can_read():
                    news += [(request, list(output.generated_ids)) for output in handle.read().values()]
                if handle.get_status() != openvino_genai.GenerationStatus.RUNNING:
                    running.remove((handle, request))
                    news.append((request, None))
            self._loop.call_soon_threadsafe(_deliver, news)

    def _arrivals(self, *, wait: bool) -> Iterator[Request]:
        if wait:
            yield self._submitted.get()
        while not self._submitted.empty():
            yield self._submitted.get()


def _deliver(news: list[tuple[Request, list[int] | None]]) -> None:
    for request, tokens in news:
        request.answer.put_nowait(tokens)


class Front:
    """Answers HTTP: any GET with an empty object, any POST with a streamed chat completion."""

    def __init__(self, engine: Engine, model: Path) -> None:
        self._engine = engine
        self._tokenizer: Tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._template = jinja2.Environment().from_string((model / "chat_template.jinja").read_text(encoding="utf-8"))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, which has one request."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            if not head.startswith(b"post"):
                writer.write(_JSON)
                return
            length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
            await self._answer(json.loads(await reader.readexactly(length)), writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        text = self._template.render(messages=body["messages"], add_generation_prompt=True)
        config = openvino_genai.GenerationConfig(
            max_new_tokens=body["max_tokens"], ignore_eos=body["ignore_eos"], do_sample=False
        )
        request = Request(self._tokenizer.encode(text, add_special_tokens=False).ids, config)
        self._engine.submit(request)
        writer.write(_EVENTS)
        text_of = DecodeStream(skip_special_tokens=False)
        num_output = 0
        while (tokens := await request.answer.get()) is not None:
            num_output += len(tokens)
            pieces = [text_of.step(self._tokenizer, token) or "" for token in tokens]
            await _send(writer, {"choices": [{"index": 0, "delta": {"content": "".join(pieces)}}]})
        usage = {"prompt_tokens": len(request.prompt), "completion_tokens": num_output}
        await _send(writer, {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
        await _send(writer, {"choices": [], "usage": usage})
        writer.write(b"data: [DONE]\n\n")
        await writer.drain()


async def _send(writer: asyncio.StreamWriter, event: dict[str, Any]) -> None:
    writer.write(b"data: " + json.dumps(event).encode() + b"\n\n")
    await writer.drain()


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--slots", type=int, required=True)
    arguments = parser.parse_args()
    scheduling = openvino_genai.SchedulerConfig()
    scheduling.cache_size = _CACHE_GB
    scheduling.max_num_seqs = arguments.slots
    scheduling.enable_prefix_caching = True
    pipeline = openvino_genai.ContinuousBatchingPipeline(
        arguments.model, scheduling, "CPU", {"INFERENCE_NUM_THREADS": arguments.threads}
    )
    front = Front(Engine(pipeline, asyncio.get_running_loop()), arguments.model)
    server = await asyncio.start_server(front.serve, HOST, arguments.port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
