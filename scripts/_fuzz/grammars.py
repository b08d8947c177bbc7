"""Sends schemas, regular expressions, grammars and tools at the limits of a compiler.

Every second one goes to the scripted runner, the others to the demo model, whose engine compiles what has passed and
follows it for a few tokens. No answer may be a 5xx or missing, and server and engines must be the same processes at the
end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import tempfile
import time
from pathlib import Path

from _load.http import BrokenAnswer, ask, ask_json
from _load.server import DEMO, Server, run_server

from .attempts import complaint_about
from .campaign import Campaign, Outcome
from .hostile_grammars import hostile_fields

_SETTINGS = {"scripted": {"GENAI_DEVICE": "scripted"}, "demo": {"GENAI_MODEL_DIR": str(DEMO)}}
_TOKENS = 6
_SECONDS = 120.0
_CHECKS = re.compile(r'^genai:grammar_checks_total\{result="(\w+)"\} (\S+)', re.MULTILINE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """This target has no arguments of its own."""


def run(arguments: argparse.Namespace, numbers: range) -> Campaign:
    """Send the grammars with these numbers."""
    found = Campaign(arguments.seed)
    if arguments.only is not None:
        print(json.dumps(hostile_fields(arguments.seed, arguments.only)))
    for place, name in enumerate(_SETTINGS):
        # Each has its numbers, also where only one of them is tried.
        some = range(numbers.start + (place - numbers.start) % len(_SETTINGS), numbers.stop, len(_SETTINGS))
        if some:
            with tempfile.TemporaryDirectory() as folder, run_server(Path(folder), _SETTINGS[name]) as server:
                asyncio.run(_send(server, name, found, some))
    return found


async def _send(server: Server, name: str, found: Campaign, numbers: range) -> None:
    async def attempt(number: int) -> Outcome:
        body = {"messages": [{"role": "user", "content": "say 1"}], "max_tokens": _TOKENS, "temperature": 1}
        body |= {"seed": number, **hostile_fields(found.seed, number)}
        started = time.perf_counter()
        try:
            async with asyncio.timeout(_SECONDS):
                response = await ask_json(server.port, "/v1/chat/completions", body)
        except (BrokenAnswer, OSError, TimeoutError) as error:
            return Outcome(name, "no answer", f"no answer: {type(error).__name__} {error}")
        code = response.json()["error"]["code"] if response.status >= 400 else ""
        complaint = complaint_about(response.status, bytes(response.body))
        if complaint is None and response.status >= 500:
            complaint = f"status {response.status}"
        return Outcome(name, f"{response.status} {code}".strip(), complaint, time.perf_counter() - started)

    before = await asyncio.to_thread(_processes, server)
    await found.run(numbers, attempt)
    if (after := await asyncio.to_thread(_processes, server)) != before:
        found.broken.append(f"{name}: server, engine and its restarts were {before} and are {after}")
    metrics = (await ask(server.port, "GET", "/metrics")).body.decode()
    found.figures += [
        [f"{name}: checks that ended as {result}", f"{float(number):.0f}"]
        for result, number in _CHECKS.findall(metrics)
    ]


def _processes(server: Server) -> list[object]:
    (device,) = server.engines()
    return [server.pid, device["pid"], device["restarts"]]
