"""An engine loop with a scripted runner."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from genai_server.engine.encoder_worker import ImageWorker
from genai_server.engine.runners.loaded_model import LoadedModel
from genai_server.engine.runners.scripted import ScriptedPooledRunner, ScriptedRunner
from genai_server.engine.sampling.grammar import bytes_guidance
from genai_server.engine.scheduling.scheduler import PoolingScheduler, Scheduler
from genai_server.engine.scheduling.scheduler_output import ScheduledChunk
from genai_server.engine.scores import Scores
from tests.stepped_loop import API, SteppedLoop


class Bench(SteppedLoop):
    """Its clock advances by a second whenever it is read, unless it has another one."""

    def __init__(
        self,
        folder: Path,
        *,
        clock: Callable[[], float] | None = None,
        pooled: ScriptedPooledRunner | None = None,
        processor_time: Callable[[], float] = time.thread_time,
        encoder: ImageWorker | None = None,
        **limits: Any,
    ) -> None:
        self.runner = ScriptedRunner()
        ticks = count()
        super().__init__(
            LoadedModel(pooled or self.runner, encoder=encoder),
            (Scheduler if pooled is None else PoolingScheduler)(
                pooled or self.runner, **{"max_running": 4, "max_waiting": 4, "prefill_chunk": 8} | limits
            ),
            bytes_guidance(self.runner.model, processor_time),
            folder,
            device="scripted",
            clock=clock or (lambda: float(next(ticks))),
        )

    def before_each_pass(self, action: Callable[[Sequence[ScheduledChunk]], object]) -> None:
        """Call this before each pass with what it reads; an error that it raises is the pass's."""
        forward = self.runner.forward

        def run(chunks: Sequence[ScheduledChunk]) -> list[Scores]:
            action(chunks)
            return forward(chunks)

        self.runner.forward = run  # type: ignore[method-assign]

    def submit(self, key: int, script: str, connection: int = API, **fields: Any) -> None:
        fields = {"max_tokens": 500, "max_length": 1000} | fields
        self.put_request(key, list(f"{script}\n\x04".encode()), connection, **fields)

    def answer(self, key: int, script: str, **fields: Any) -> str:
        """The text of an answer, when there is nothing more to do."""
        self.submit(key, script, **fields)
        self.run()
        return self.text(key)

    def text(self, key: int) -> str:
        return bytes(self.tokens(key)).decode()


@contextmanager
def nothing_compiles(bench: Bench) -> Iterator[None]:
    """Compilations of grammars wait until the block ends, those of every tenant: both threads are taken."""
    gate = threading.Event()
    for tenant in ("holds the first thread", "holds the second thread"):
        bench.loop._admission._guidance._worker.submit(gate.wait, tenant=tenant)
    try:
        yield
    finally:
        gate.set()
