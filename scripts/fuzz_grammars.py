"""Send a server schemas, regular expressions, grammars and tools at the limits of a compiler.

Half of them go to the scripted runner, half to the demo model, whose engine compiles what has passed and follows it for
a few tokens. No answer may be a 5xx or missing, and server and engines must be the same processes at the end. Findings
are reported with the numbers that reproduce them. Exits with status 1 if a promise is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from _load.fuzzing import complaint_about
from _load.hostile_grammars import hostile_fields
from _load.http import BrokenAnswer, ask_json
from _load.server import DEMO, HOST, Server, run_server
from _models.table import table

_PATH = "/v1/chat/completions"
_SETTINGS = {"scripted": {"GENAI_DEVICE": "scripted"}, "demo": {"GENAI_MODEL_DIR": str(DEMO)}}
_TOKENS = 6
_MAX_SHOWN = 20
_CHECKS = re.compile(r'^genai:grammar_checks_total\{result="(\w+)"\} (\S+)', re.MULTILINE)


@dataclass
class Findings:
    """The results of the attempts at one server."""

    statuses: Counter[int] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[int, str]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    slowest: tuple[float, int] = (0.0, 0)
    checks: dict[str, int] = field(default_factory=dict)
    longest_health: float = 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000, help="attempts in all (100000)")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--first", type=int, default=0, help="the number of the first attempt (0)")
    parser.add_argument("--clients", type=int, default=4, help="at the same time (4)")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="this attempt of the seed, and show what it sends")
    parser.add_argument("--server", choices=[*_SETTINGS], help="only this one")
    parser.add_argument("--markdown", action="store_true", help="print the table as a document has it")
    arguments = parser.parse_args()
    numbers = range(arguments.first, arguments.first + arguments.count)
    if arguments.only is not None:
        numbers = range(arguments.only, arguments.only + 1)
        print(json.dumps(hostile_fields(arguments.seed, arguments.only)))
    servers = [arguments.server] if arguments.server else [*_SETTINGS]
    found, broken = {}, []
    for place, name in enumerate(servers):
        some = numbers if arguments.only is not None else numbers[place :: len(servers)]
        found[name], complaints = try_server(name, arguments.seed, some, arguments.clients)
        broken += complaints
    print(table(report(found), markdown=arguments.markdown), end="\n\n")
    for complaint in broken[:_MAX_SHOWN]:
        print(f"BROKEN: {complaint}")
    print(f"seed {arguments.seed}; broken promises: {len(broken) or 'none'}")
    sys.exit(bool(broken))


def try_server(name: str, seed: int, numbers: range, clients: int) -> tuple[Findings, list[str]]:
    """The result of an attempt, and what is wrong with it."""
    with tempfile.TemporaryDirectory() as folder, run_server(Path(folder), _SETTINGS[name]) as server:
        before = _processes(server)
        found = asyncio.run(_try_all(server, seed, numbers, clients))
        again = f"again: scripts/fuzz_grammars.py --seed {seed} --server {name} --only"
        broken = [f"{what}\n  {again} {number}" for number, what in sorted(found.failures)]
        if (after := _processes(server)) != before:
            broken.append(f"{name}: server, engine and its restarts were {before} and are {after}")
        metrics = httpx.get(f"http://{HOST}:{server.port}/metrics", timeout=10).text
        found.checks = {result: int(float(number)) for result, number in _CHECKS.findall(metrics)}
    return found, broken


def report(found: dict[str, Findings]) -> list[list[str]]:
    """Figures."""
    rows = [["what", *found]]
    rows.append(["attempts", *(f"{sum(one.statuses.values())}" for one in found.values())])
    for status in sorted(set().union(*(one.statuses for one in found.values()))):
        rows.append([str(status) if status else "no answer", *(f"{one.statuses[status]}" for one in found.values())])
    for code in sorted(set().union(*(one.codes for one in found.values()))):
        rows.append([f"of these {code}", *(f"{one.codes[code]}" for one in found.values())])
    for result in sorted(set().union(*(one.checks for one in found.values()))):
        rows.append([f"checks that ended as {result}", *(f"{one.checks.get(result, 0)}" for one in found.values())])
    for share in (0.5, 0.99, 0.999):
        rows.append(
            [f"p{share * 100:g} ms", *(f"{1000 * _quantile(one.seconds, share):.0f}" for one in found.values())]
        )
    rows.append(["slowest, s (attempt)", *("{:.1f} ({})".format(*one.slowest) for one in found.values())])
    rows.append(["slowest /healthz, ms", *(f"{1000 * one.longest_health:.0f}" for one in found.values())])
    return rows


async def _try_all(server: Server, seed: int, numbers: range, clients: int) -> Findings:
    found, waiting = Findings(), iter(numbers)
    watching = asyncio.create_task(_watch_health(server, found))
    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(_work(server, seed, waiting, found))
    watching.cancel()
    return found


async def _watch_health(server: Server, found: Findings) -> None:
    async with httpx.AsyncClient(base_url=f"http://{HOST}:{server.port}", timeout=60) as client:
        while True:
            started = time.perf_counter()
            await client.get("/healthz")
            found.longest_health = max(found.longest_health, time.perf_counter() - started)
            await asyncio.sleep(0.1)


async def _work(server: Server, seed: int, numbers: Iterator[int], found: Findings) -> None:
    for number in numbers:
        body = {
            "messages": [{"role": "user", "content": "say 1"}],
            "max_tokens": _TOKENS,
            "temperature": 1,
            "seed": number,
        }
        body |= hostile_fields(seed, number)
        started = time.perf_counter()
        try:
            async with asyncio.timeout(120):
                response = await ask_json(server.port, _PATH, body)
        except (BrokenAnswer, OSError, TimeoutError) as error:
            found.statuses[0] += 1
            found.failures.append((number, f"no answer: {type(error).__name__} {error}"))
            continue
        seconds = time.perf_counter() - started
        found.seconds.append(seconds)
        found.slowest = max(found.slowest, (seconds, number))
        found.statuses[response.status] += 1
        if response.status >= 400:
            found.codes[response.json()["error"]["code"]] += 1
        if (complaint := complaint_about(response)) is not None or response.status >= 500:
            found.failures.append((number, complaint or f"status {response.status}"))


def _processes(server: Server) -> list[object]:
    (device,) = server.engines()
    return [server.pid, device["pid"], device["restarts"]]


def _quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0


if __name__ == "__main__":
    main()
