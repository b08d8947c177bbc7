"""Measure the memory of an engine process that has answered requests.

The engine is the server's own, under its supervisor but without an API process, whose share in common pages would be
taken for a saving: once with the weights packed in a cache that is mapped into memory, once without. On Linux only; run
it with the interpreter of `.venv`.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import tempfile
from pathlib import Path

from _load.footprint import footprint
from _models.table import table

from genai_server.config.settings import Settings
from genai_server.config.sources import load_settings
from genai_server.engine_client.client import EngineClient, Router
from genai_server.messages.generation_request import GenerationRequest
from genai_server.supervisor.supervisor import Supervisor

SLOTS, MAX_LENGTH = 16, 2048
MAX_PROMPT_TOKENS, MAX_OUTPUT_TOKENS = 1000, 48
# Lower ids are special tokens. Every bench model has at least these tokens.
FIRST_TOKEN, LAST_TOKEN = 3, 1900
SECONDS = 1800
HEAD = ["weights", "engine MB"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model_dir", type=Path, nargs="?", default=Path("models/demo"), metavar="MODEL_DIR")
    parser.add_argument("--requests", type=int, default=100, metavar="N", help="requests to answer first (default 100)")
    parser.add_argument("--markdown", action="store_true", help="print the table as a document has it")
    arguments = parser.parse_args()
    requests = mixed_requests(arguments.requests)
    rows = [HEAD]
    with tempfile.TemporaryDirectory() as temporary:
        for weights, cache in (("packed once, mapped", temporary), ("packed by the session", "none")):
            given = {"model_dir": str(arguments.model_dir), "cache_dir": cache, "max_queue": str(len(requests))}
            given |= {"max_batch_size": str(SLOTS), "max_length": str(MAX_LENGTH), "log_level": "warning"}
            settings = load_settings(given, environ={}, dotenv=None)
            rows.append([weights, f"{measure_engine(settings, requests) / 1e6:.0f}"])
    print(f"{arguments.model_dir}: PSS after {arguments.requests} requests\n")
    print(table(rows, markdown=arguments.markdown))


def mixed_requests(number: int) -> list[GenerationRequest]:
    """Prompts of all lengths, mostly short, without common beginnings."""
    chance = random.Random(0)
    requests = []
    for index in range(number):
        length = round(math.exp(chance.uniform(0, math.log(MAX_PROMPT_TOKENS))))
        prompt = [chance.randint(FIRST_TOKEN, LAST_TOKEN) for _ in range(length)]
        num_output = chance.randint(1, MAX_OUTPUT_TOKENS)
        requests.append(GenerationRequest(f"r{index}", prompt, num_output, MAX_LENGTH, ignore_eos=True))
    return requests


def measure_engine(settings: Settings, requests: list[GenerationRequest]) -> int:
    """Bytes of the engine process that has answered them."""
    supervisor = Supervisor(settings)
    supervisor.start()
    try:
        asyncio.run(answer_all(supervisor, settings.device, requests))
        (status,) = supervisor.statuses()
        assert status.pid is not None
        return footprint(status.pid).pss
    finally:
        supervisor.stop()


async def answer_all(supervisor: Supervisor, device: str, requests: list[GenerationRequest]) -> None:
    """Send all requests at once and wait for their answers."""
    router = Router([device], supervisor.status)
    engine = router.engines[device]
    running = asyncio.create_task(router.run())
    async with asyncio.timeout(SECONDS):
        while not engine.is_ready:
            if engine.status().state == "failed":
                raise SystemExit(f"the engine cannot load the model: {engine.status().error}")
            await asyncio.sleep(0.1)
        await asyncio.gather(*(answer(engine, request) for request in requests))
    running.cancel()


async def answer(engine: EngineClient, request: GenerationRequest) -> None:
    """Read one answer to its end."""
    (stream,) = await engine.in_flight.submit(request)
    async for _ in stream:
        pass


if __name__ == "__main__":
    main()
