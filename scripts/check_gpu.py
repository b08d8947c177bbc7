"""Check on a machine with a GPU what a server does, and how fast: one configuration after another, in a given time.

Each configuration is a name, a model directory, a value of GENAI_SCHEDULER, and further settings. Its server is
started, asked, measured with several numbers of streams, killed and unloaded. Every step has a deadline, and a failed
one does not stop the next. Greedy answers are compared with those of the first configuration of the same model, so
begin with `generator`.

    .venv/bin/python scripts/check_gpu.py --out /tmp/gpu one=MODEL_DIR:generator \\
        all=MODEL_DIR:batched:GENAI_MAX_BATCH_SIZE=128,GENAI_MAX_LENGTH=8192

The folder gets results.json, which is complete after each step, and of each configuration the server's log. Status 0:
all that ran was as it should be. On Linux only. tests/apis and tests/engine check what does not depend on the device.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.metadata import distributions
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
from _load.answers import read_answer
from _load.clients import ADMIN, DEATHS
from _load.server import HOST, DoesNotStart, Server, run_server

from genai_server.tools.bench.bench_client import words
from genai_server.tools.bench.bench_session import Session
from genai_server.tools.bench.measurement import summarize
from genai_server.tools.bench.plan import Plan, RequestOptions

OK, FAILED, NOT_REACHED = "ok", "failed", "not reached"
STREAMS, LONG_PROMPT, PROMPT, OUTPUT_TOKENS, ROUNDS = (1, 16, 64, 128), 4000, 64, 192, 3
# Maximum seconds of a step, and what a server needs to stop.
SECONDS, SECONDS_TO_STOP = 60.0, 8.0
# A token that leads the second by so little, in natural logarithms, may change places with it by rounding.
NEAR = 0.25
GREEDY = {"temperature": 0, "ignore_eos": True}
QUESTIONS = (
    "What is the capital of France?",
    "Count from 1 to 40.",
    "Write a short story about a river and a bridge.",
    "Explain how a sailing boat can move against the wind, step by step.",
    words(300, "greedy"),
)
# Values may have commas, too.
SEPARATOR = re.compile(r",(?=[A-Z_]+=)")
Figures = dict[str, Any]
Greedy = list[tuple[str, float]]
Step = Callable[[], Awaitable[Figures]]


class Broken(Exception):
    """A step has seen what must not be."""


@dataclass(frozen=True)
class Configuration:
    """A server to check: its name in the results, and its settings."""

    name: str
    model_dir: Path
    settings: dict[str, str]


@dataclass(frozen=True)
class Result:
    """How a step of a configuration ended. `message` is the reason, or a remark."""

    configuration: str
    step: str
    status: str
    seconds: float = 0.0
    message: str = ""
    figures: Figures = field(default_factory=dict)


@dataclass
class Run:
    """What all configurations share: the folder of results, the names of the steps unless all are wanted, the results
    up to now, and the greedy answers to compare with, for each model.
    """

    folder: Path
    about: Figures
    wanted: Sequence[str] | None
    results: list[Result] = field(default_factory=list)
    references: dict[Path, tuple[str, list[Greedy]]] = field(default_factory=dict)

    def note(self, result: Result) -> None:
        """Print a result, and write all of them to the file."""
        self.results.append(result)
        figures = {name: value for name, value in result.figures.items() if isinstance(value, (int, float))}
        print(f"{result.configuration} {result.step}: {result.status}, {result.message} {figures}"[:240], flush=True)
        new = self.folder / "results.new"
        content = {**self.about, "results": [asdict(one) for one in self.results]}
        new.write_text(json.dumps(content, indent=1, ensure_ascii=False, default=str), encoding="utf-8")
        os.replace(new, self.folder / "results.json")


def read_greedy(choice: dict[str, Any]) -> Greedy:
    """The tokens of an answer with two `top_logprobs`, and by how much each one's log probability is above the next
    token's; where the device has no log probabilities, the text as one token.
    """
    entries = (choice.get("logprobs") or {}).get("content") or ()
    if not entries:
        return [(choice["message"]["content"], 0.0)]
    best = [sorted((top["logprob"] for top in entry["top_logprobs"]), reverse=True) for entry in entries]
    return [(entry["token"], pair[0] - pair[-1]) for entry, pair in zip(entries, best, strict=True)]


def compared(name: str, reference: Sequence[Greedy], found: Sequence[Greedy]) -> Figures:
    """How many answers equal those of the reference, whose name is given. Raises Broken if a difference is no rounding:
    if the reference's first token that differs leads by more than a little.
    """
    leads = []
    for one, other in zip(reference, found, strict=True):
        leads += [lead for (token, lead), (instead, _) in zip(one, other, strict=False) if token != instead][:1]
    if max(leads, default=0.0) > NEAR:
        raise Broken(f"{len(leads)} answers differ from {name} by more than rounding: {leads}")
    return {"equal": len(found) - len(leads), "answers": len(found), "compared_with": name}


class Checks:
    """The steps on one running server."""

    def __init__(self, run: Run, one: Configuration, server: Server) -> None:
        self._run = run
        self._one = one
        self._server = server
        self._url = f"http://{HOST}:{server.port}"
        self._client = httpx.AsyncClient(base_url=self._url, timeout=None)

    def steps(self) -> Iterator[tuple[str, Step]]:
        """Names and steps, at the end those that end an engine."""
        yield "greedy", self.greedy
        yield "together", self.together
        max_length = httpx.get(f"{self._url}/v1/models", timeout=10).json()["data"][0]["max_model_len"]
        if max_length > LONG_PROMPT + 2 * OUTPUT_TOKENS:
            yield f"prompt {LONG_PROMPT}", partial(self.speed, 1, LONG_PROMPT)
        for streams in STREAMS:
            yield f"speed {streams}", partial(self.speed, streams, PROMPT)
        yield from (("terminate", self.terminate), ("kill", self.kill), ("unload", self.unload))

    async def greedy(self) -> Figures:
        """The most likely tokens, for one question after another."""
        return self._compared([await self._most_likely(question) for question in QUESTIONS])

    async def together(self) -> Figures:
        """The same for all questions at once."""
        return self._compared(await asyncio.gather(*map(self._most_likely, QUESTIONS)))

    async def speed(self, streams: int, prompt_tokens: int) -> Figures:
        """Medians over some rounds of `genai-server bench`, after a round that does not count."""
        plan = Plan(
            rounds=ROUNDS + 1,
            concurrency=(streams,),
            prompt_tokens=(prompt_tokens,),
            output_tokens=OUTPUT_TOKENS,
            seed=str(time.time()),
        )
        session = Session(plan, RequestOptions([self._url], body=GREEDY, health_interval=0))
        await session.run(lambda *_: None)
        (summary,) = summarize(session.report().measurements[1:])
        if summary.failed:
            raise Broken(f"{summary.failed} requests failed: {summary.first_error}")
        return {name: value.median for name, value in summary.figures.items() if value is not None}

    async def terminate(self) -> Figures:
        """`terminate_session` while long prompts are read: their answers end, and new requests are refused."""
        asking = [asyncio.create_task(self._ask(words(1000, "terminate", number))) for number in range(4)]
        try:
            await self._until(lambda phases: {"prefill", "decode"} & {*phases.values()} or asking[0].done())
            began = time.monotonic()
            await self._set_option("1")
            ended = await asyncio.gather(*asking)
            seconds = time.monotonic() - began
            refused = await self._ask(QUESTIONS[0])
        finally:
            await self._set_option("0")
        ends = [body["choices"][0]["finish_reason"] if "choices" in body else body["error"]["code"] for body in ended]
        if refused.get("error", {}).get("code") != "session_terminated":
            raise Broken(f"a new request got {str(refused)[:200]}")
        return {"seconds_to_end": seconds, "ends": ends}

    async def kill(self) -> Figures:
        """SIGKILL to the engine during a stream, which ends with an error; another engine answers."""
        pid = await asyncio.to_thread(self._server.engine_pid)
        assert pid is not None
        body = {**_chat(QUESTIONS[2]), "stream": True}
        stream = asyncio.create_task(self._client.post("/v1/chat/completions", json=body))
        await self._until(lambda phases: "decode" in phases.values())
        os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        response = await stream
        seconds_to_error = time.monotonic() - began
        while await asyncio.to_thread(self._server.engine_pid) in (None, pid):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.02)
        await self._most_likely(QUESTIONS[0])
        if (reason := read_answer(response.status_code, response.content, streamed=True).reason) not in DEATHS:
            raise Broken(f"the stream ended with {reason}")
        return {"seconds_to_error": seconds_to_error, "seconds_to_answer": time.monotonic() - began}

    async def unload(self) -> Figures:
        """Unload the model; its memory on the GPU comes back."""
        before, began = await asyncio.to_thread(gpu_memory), time.monotonic()
        name = next(iter(await asyncio.to_thread(self._server.health)))
        response = await self._client.post("/v1/admin/models/unload", json={"name": name, "timeout": 2})
        if response.status_code != 200:
            raise Broken(f"{response.status_code} {response.text[:300]}")
        seconds = time.monotonic() - began
        return {"seconds_to_unload": seconds, "mib_before": before, "mib_after": await asyncio.to_thread(gpu_memory)}

    def _compared(self, found: list[Greedy]) -> Figures:
        return compared(*self._run.references.setdefault(self._one.model_dir, (self._one.name, found)), found)

    async def _most_likely(self, question: str) -> Greedy:
        body = await self._ask(question, max_tokens=48, cache_prompt=False, logprobs=True, top_logprobs=2)
        if "is not supported on this device" in body.get("error", {}).get("message", ""):
            body = await self._ask(question, max_tokens=48, cache_prompt=False)
        if "choices" not in body:
            raise Broken(f"no answer: {str(body)[:300]}")
        return read_greedy(body["choices"][0])

    async def _ask(self, question: str, **fields: Any) -> dict[str, Any]:
        response = await self._client.post("/v1/chat/completions", json=_chat(question, **fields))
        body: dict[str, Any] = response.json()
        return body

    async def _set_option(self, value: str) -> None:
        (await self._client.post(ADMIN, json={"terminate_session": value})).raise_for_status()

    async def _until(self, condition: Callable[[dict[str, str]], object]) -> None:
        """Look at the phase of each request, by its id, until the condition holds."""
        while True:
            entries = (await self._client.get("/v1/requests")).json()["data"]
            if condition({entry["id"]: entry["phase"] for entry in entries}):
                return


def _chat(question: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}], **GREEDY, **fields}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="GENAI_DEVICE (default: cuda)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for results and logs")
    parser.add_argument("--seconds", type=float, default=240.0, help="for all together (default: 240)")
    parser.add_argument("--steps", metavar="STEP,...", help="only these, by their names in the output")
    parser.add_argument("configurations", nargs="+", type=configuration, metavar="NAME=MODEL_DIR:SCHEDULER[:SETTINGS]")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, end_in_order)
    arguments.out.mkdir(parents=True, exist_ok=True)
    packages = {one.name: one.version for one in distributions() if one.name.startswith(("genai", "onnxruntime"))}
    about = {"device": arguments.device, "machine": platform.platform(), "packages": packages}
    run = Run(arguments.out, about, arguments.steps.split(",") if arguments.steps else None)
    end = time.monotonic() + arguments.seconds
    for number, one in enumerate(arguments.configurations):
        one.settings.setdefault("GENAI_DEVICE", arguments.device)
        # What one leaves of its time is for the others.
        check(run, one, (end - time.monotonic()) / (len(arguments.configurations) - number))
    sys.exit(any(result.status == FAILED for result in run.results))


def configuration(text: str) -> Configuration:
    """Read an argument NAME=MODEL_DIR:SCHEDULER[:NAME=VALUE,...]. Raises ValueError."""
    name, server = text.split("=", 1)
    model, scheduler, *rest = server.split(":", 2)
    model_dir = Path(model).resolve()
    settings = {"GENAI_MODEL_DIR": str(model_dir), "GENAI_SCHEDULER": scheduler, "GENAI_DRAIN_TIMEOUT": "1"}
    further = SEPARATOR.split(rest[0]) if rest else ()
    return Configuration(name, model_dir, settings | dict(setting.split("=", 1) for setting in further))


def end_in_order(number: int, _: FrameType | None) -> None:
    """Leave all contexts, which ends the server's processes."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


def check(run: Run, one: Configuration, seconds: float) -> None:
    """All steps of a configuration, within its time."""
    began = time.monotonic()
    end = began + seconds - SECONDS_TO_STOP
    if end <= began:
        run.note(Result(one.name, "start", NOT_REACHED, message="no time is left"))
        return
    log = run.folder / f"{one.name}.log"
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            run_server(Path(folder), one.settings, end - began, log=log, seconds_to_stop=SECONDS_TO_STOP) as server,
        ):
            scheduler = server.engines()[0]["batching"]["scheduler"]
            run.note(Result(one.name, "start", OK, time.monotonic() - began, scheduler))
            asyncio.run(inspect(run, one, server, end))
    except DoesNotStart as error:
        said = str(error).strip()
        run.note(Result(one.name, "start", FAILED, time.monotonic() - began, said[-3000:]))


async def inspect(run: Run, one: Configuration, server: Server, end: float) -> None:
    """The steps on a running server, each with a result."""
    for name, step in Checks(run, one, server).steps():
        if run.wanted is not None and name not in run.wanted:
            continue
        began = time.monotonic()
        figures: Figures = {}
        status, message = FAILED, ""
        try:
            async with asyncio.timeout(min(SECONDS, end - began)):
                figures, status = await step(), OK
        except TimeoutError:
            status, message = (FAILED if end - began > SECONDS else NOT_REACHED), "its time was over"
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
        run.note(Result(one.name, name, status, round(time.monotonic() - began, 3), message, figures))


def gpu_memory() -> int:
    """MiB in use on all of NVIDIA's GPUs together; 0 without any."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return 0
    command = [program, "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return sum(map(int, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()))


if __name__ == "__main__":
    main()
