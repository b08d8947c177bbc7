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
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import httpx
from _load.http import BrokenAnswer, ask_json
from _load.server import DEMO, HOST, Server, run_server

from .attempts import complaint_about
from .campaign import Campaign, Outcome
from .hostile_grammars import hostile_fields

_SETTINGS = {"scripted": {"GENAI_DEVICE": "scripted"}, "demo": {"GENAI_MODEL_DIR": str(DEMO)}}
_TOKENS = 6
_SECONDS = 120.0
_CHECKS = re.compile(r'^genai:grammar_checks_total\{result="(\w+)"\} (\S+)', re.MULTILINE)


def run(arguments: argparse.Namespace, numbers: range) -> Campaign:
    """Send the grammars with these numbers."""
    found = Campaign(arguments.seed)
    if arguments.only is not None:
        print(json.dumps(hostile_fields(arguments.seed, arguments.only)))
    with ExitStack() as stack:
        servers = {}
        for name, settings in _SETTINGS.items():
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            servers[name] = stack.enter_context(run_server(Path(folder), settings))
        before = _processes(servers)
        asyncio.run(_send(servers, found, numbers))
        if (after := _processes(servers)) != before:
            found.broken.append(f"servers, engines and their restarts were {before} and are {after}")
        for name, server in servers.items():
            checks = _CHECKS.findall(httpx.get(f"http://{HOST}:{server.port}/metrics", timeout=60).text)
            found.figures += [[f"{name}: checks that ended as {result}", number] for result, number in checks]
    return found


async def _send(servers: Mapping[str, Server], found: Campaign, numbers: range) -> None:
    async def attempt(number: int) -> Outcome:
        name = list(servers)[number % len(servers)]
        body = {"messages": [{"role": "user", "content": "say 1"}], "max_tokens": _TOKENS, "temperature": 1}
        body |= {"seed": number, **hostile_fields(found.seed, number)}
        started = time.perf_counter()
        try:
            async with asyncio.timeout(_SECONDS):
                response = await ask_json(servers[name].port, "/v1/chat/completions", body)
        except (BrokenAnswer, OSError, TimeoutError) as error:
            return Outcome(name, "no answer", f"no answer: {type(error).__name__} {error}")
        code = response.json()["error"]["code"] if response.status >= 400 else ""
        complaint = complaint_about(response.status, bytes(response.body))
        if complaint is None and response.status >= 500:
            complaint = f"status {response.status}"
        return Outcome(name, f"{response.status} {code}".strip(), complaint, time.perf_counter() - started)

    await found.run(numbers, attempt)


def _processes(servers: Mapping[str, Server]) -> list[object]:
    return [
        (server.pid, engine["pid"], engine["restarts"]) for server in servers.values() for engine in server.engines()
    ]
