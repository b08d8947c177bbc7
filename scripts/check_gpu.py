"""Check on a machine with a GPU what a server does, and how fast: one configuration after another, in a given time.

Each configuration is a name, a model directory, a value of GENAI_SCHEDULER, and further settings. Its server is
started, asked for all that it promises, measured with several numbers of streams, killed and unloaded. Every step has a
deadline, and a failed one does not stop the next. Greedy answers are compared with those of the first configuration of
the same model, so begin with `generator`.

    .venv/bin/python scripts/check_gpu.py --out /tmp/gpu one=MODEL_DIR:generator \\
        all=MODEL_DIR:batched:GENAI_MAX_BATCH_SIZE=128,GENAI_MAX_LENGTH=8192

The folder gets results.json, which is complete after each step, and of each configuration the server's log and the
report of a profile. Status 0: all that ran was as it should be. On Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import re
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FrameType

import psutil
from _load.behavior import Behavior
from _load.gpu import gpu_memory, gpu_names
from _load.greedy import Greedy, compared
from _load.server import DoesNotStart, Server, run_server
from _load.speed import GREEDY, SAMPLED, Prompts, Speed, prompts_for
from _load.step_results import FAILED, NOT_REACHED, OK, Broken, Figures, Result, ResultBook, run_step
from _models.table import table

PACKAGES = ("genai-server", "onnxruntime", "onnxruntime-gpu", "onnxruntime-genai", "onnxruntime-genai-cuda", "numpy")
STREAMS = (1, 16, 64, 128)
QUICK = ("chat", "greedy", "speed 1", "speed 16")
PROMPTS = (512, 4000)
OUTPUT_TOKENS = 192
QUICK_TOKENS = 96
# Maximum seconds of each step.
SECONDS, SECONDS_FOR_SPEED, SECONDS_TO_KILL = 25.0, 40.0, 60.0
SECONDS_TO_STOP = 8.0
SECONDS_TO_RECOVER = 15.0
MAX_LOG_BYTES = 200_000
GIVEN = re.compile(r"(?P<name>[\w.-]+)=(?P<model>[^:]+):(?P<scheduler>\w+)(?::(?P<settings>.+))?")
SEPARATOR = re.compile(r",(?=[A-Z_]+=)")
HEAD = ("configuration", "ready s", "answer s", "TTFT ms 512", "4000", *(f"tokens/s {n}" for n in STREAMS), "greedy")
Step = Callable[[], Awaitable[Figures]]


@dataclass(frozen=True)
class Configuration:
    """A server to check: its name in the results, and its settings."""

    name: str
    model_dir: Path
    scheduler: str
    settings: dict[str, str]


@dataclass
class Run:
    """What all configurations share: the results, the folder of their logs, the length of measured answers, the names
    of the steps unless all are wanted, and the greedy answers to compare with, for each model.
    """

    book: ResultBook
    folder: Path
    output_tokens: int
    wanted: Sequence[str] | None
    references: dict[Path, tuple[str, Sequence[Greedy]]] = field(default_factory=dict)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="GENAI_DEVICE (default: cuda)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for results and logs")
    parser.add_argument("--seconds", type=float, default=240.0, help="for all together (default: 240)")
    parser.add_argument("--quick", action="store_true", help=f"only {', '.join(QUICK)}, with short answers")
    parser.add_argument("--steps", metavar="STEP,...", help="only these, by their names in the output")
    parser.add_argument("--markdown", action="store_true", help="print the table as a document has it")
    parser.add_argument("configurations", nargs="+", type=configuration, metavar="NAME=MODEL_DIR:SCHEDULER[:SETTINGS]")
    arguments = parser.parse_args()
    for ending in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(ending, end_in_order)
    # Only if a step hangs beyond its deadline.
    signal.alarm(int(arguments.seconds + SECONDS_TO_RECOVER))
    arguments.out.mkdir(parents=True, exist_ok=True)
    about = {"device": arguments.device, "gpus": gpu_names(), "machine": platform.platform(), "packages": packages()}
    output_tokens = QUICK_TOKENS if arguments.quick else OUTPUT_TOKENS
    wanted = arguments.steps.split(",") if arguments.steps else QUICK if arguments.quick else None
    run = Run(ResultBook(arguments.out / "results.json", about), arguments.out, output_tokens, wanted)
    end = time.monotonic() + arguments.seconds
    for number, one in enumerate(arguments.configurations):
        # What one leaves of its time is for the others.
        share = (end - time.monotonic()) / (len(arguments.configurations) - number)
        check(run, replace(one, settings={"GENAI_DEVICE": arguments.device} | one.settings), share)
    rows = [row(run.book, one.name) for one in arguments.configurations]
    print("\n" + table([HEAD, *rows], markdown=arguments.markdown))
    sys.exit(any(result.status == FAILED for result in run.book.results))


def configuration(text: str) -> Configuration:
    """Read an argument. Raises ArgumentTypeError."""
    found = GIVEN.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=MODEL_DIR:SCHEDULER[:NAME=VALUE,...]")
    settings = dict(setting.split("=", 1) for setting in SEPARATOR.split(found["settings"] or "") if "=" in setting)
    return Configuration(found["name"], Path(found["model"]).resolve(), found["scheduler"], settings)


def end_in_order(number: int, _: FrameType | None) -> None:
    """Leave all contexts, which ends the server's processes."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


def packages() -> dict[str, str]:
    """The versions of what runs a model."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def check(run: Run, one: Configuration, seconds: float) -> None:
    """All steps of a configuration, within its time."""
    began = time.monotonic()
    end = began + seconds - SECONDS_TO_STOP
    settings = {"GENAI_MODEL_DIR": str(one.model_dir), "GENAI_SCHEDULER": one.scheduler, "GENAI_DRAIN_TIMEOUT": "1"}
    log = run.folder / f"{one.name}.log"
    if end - began <= 0:
        run.book.note(Result(one.name, "start", NOT_REACHED, message="no time is left"))
        return
    try:
        with (
            tempfile.TemporaryDirectory() as temporary,
            run_server(
                Path(temporary), settings | one.settings, end - began, log=log, seconds_to_stop=SECONDS_TO_STOP
            ) as server,
        ):
            asyncio.run(inspect(run, one, server, began, end))
    except DoesNotStart as error:
        said = str(error).strip()
        figures = {"log": said[-3000:]}
        run.book.note(Result(one.name, "start", FAILED, time.monotonic() - began, said.splitlines()[-1], figures))
    finally:
        shorten(log)


async def inspect(run: Run, one: Configuration, server: Server, began: float, end: float) -> None:
    """The steps on a running server, the first of which is its start at `began`."""
    seconds_to_ready = time.monotonic() - began
    prompts: list[Prompts] = []

    async def start() -> Figures:
        prompts.append(await prompts_for(server.port))
        asked = time.monotonic()
        await Behavior(server, prompts[0], run.folder / "none").answers()
        (device,) = server.engines()
        figures = {"seconds_to_ready": seconds_to_ready, "seconds_to_answer": time.monotonic() - asked}
        return figures | memory(device["pid"]) | {"message": device["batching"]["scheduler"], "device": device}

    result = await run_step(one.name, "start", max(1.0, end - time.monotonic()), start)
    run.book.note(replace(result, seconds=time.monotonic() - began))
    if result.status != OK:
        return
    num_slots = int(result.figures["device"]["batching"]["num_slots"]) or 1
    behavior = Behavior(server, prompts[0], run.folder / f"{one.name}.profile.txt")
    reason = ""
    for name, most, step in steps(run, one, behavior, Speed(server, prompts[0], num_slots, end), server):
        if run.wanted is not None and name not in run.wanted:
            continue
        left = end - time.monotonic()
        if left <= 1.0 or reason:
            run.book.note(Result(one.name, name, NOT_REACHED, message=reason or "no time is left"))
            continue
        result = await run_step(one.name, name, min(most, left), step)
        run.book.note(result)
        if result.status == FAILED:
            recovery = await run_step(one.name, "recovery", SECONDS_TO_RECOVER, recovered(behavior))
            reason = "" if recovery.status == OK else f"the server no longer answers: {recovery.message}"


def steps(
    run: Run, one: Configuration, behavior: Behavior, speed: Speed, server: Server
) -> Iterator[tuple[str, float, Step]]:
    """Name, most seconds, and what to do; last what ends an engine."""

    async def greedy() -> Figures:
        found = await behavior.greedy()
        name, reference = run.references.setdefault(one.model_dir, (one.name, found))
        about: Figures = {"texts": [answer.text for answer in found]}
        if name == one.name:
            return about | {"message": "the answers that others of this model are compared with"}
        try:
            return about | compared(reference, found, name)
        except Broken as broken:
            raise Broken(str(broken), about | broken.figures) from None

    def decode(streams: int, **sampling: float) -> Step:
        return lambda: speed.decode(streams, run.output_tokens, **sampling)

    yield "chat", SECONDS, behavior.chat
    yield "greedy", SECONDS, greedy
    for name in ("together", "seed", "logprobs", "schema", "stop"):
        yield name, SECONDS, getattr(behavior, name)
    for length in PROMPTS:
        yield f"prompt {length}", SECONDS, lambda length=length: speed.prompt(length)  # type: ignore[misc]
    for streams in STREAMS:
        yield f"speed {streams}", SECONDS_FOR_SPEED, decode(streams, **GREEDY)
    yield "sampled 16", SECONDS_FOR_SPEED, decode(16, **SAMPLED)
    yield "memory", SECONDS, lambda: asyncio.to_thread(lambda: memory(server.engine_pid()))
    for name in ("disconnect", "terminate", "profile"):
        yield name, SECONDS, getattr(behavior, name)
    yield "kill", SECONDS_TO_KILL, behavior.kill
    yield "unload", SECONDS, behavior.unload


def recovered(behavior: Behavior) -> Step:
    """A step in which the server must answer again."""

    async def recover() -> Figures:
        await behavior.recover()
        return {}

    return recover


def memory(pid: int | None) -> Figures:
    """Resident bytes of the engine's process, and the GPU's memory."""
    if pid is None:
        raise Broken("no engine is ready")
    return {"engine_rss_mib": psutil.Process(pid).memory_info().rss >> 20, **gpu_memory(pid)}


def shorten(log: Path) -> None:
    """Keep the beginning and the end of a long log."""
    said = log.read_bytes() if log.exists() else b""
    if len(said) > MAX_LOG_BYTES:
        half = MAX_LOG_BYTES // 2 - 50
        log.write_bytes(said[:half] + b"\n[...]\n" + said[-half:])


def row(book: ResultBook, name: str) -> list[str]:
    """A configuration's line of the table."""
    found = book.of(name)

    def figure(step: str, name: str, form: str, factor: float = 1.0) -> str:
        result = found.get(step)
        value = None if result is None else result.figures.get(name)
        return form.format(value * factor) if isinstance(value, (int, float)) else "–"

    greedy = found.get("greedy")
    return [
        name,
        figure("start", "seconds_to_ready", "{:.1f}"),
        figure("start", "seconds_to_answer", "{:.2f}"),
        *(figure(f"prompt {length}", "ttft_p50", "{:.0f}", 1000.0) for length in PROMPTS),
        *(figure(f"speed {streams}", "decode_tokens_per_second", "{:.0f}") for streams in STREAMS),
        "–" if greedy is None else f"{greedy.status}, {figure('greedy', 'equal', '{:.0f} equal')}",
    ]


if __name__ == "__main__":
    main()
