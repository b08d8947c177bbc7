"""Puts third-party routers in front of two servers with the demo model, and measures them.

usage: .venv/bin/python scripts/check_routers.py [ROUTER]... [--work FOLDER] [--quick]

Each router is installed from PyPI into an environment of its own below FOLDER. OpenAI's client asks through it, plainly
and as a stream. Conversations with shared system prompts show what each policy finds in the prefix caches. Then one
server is asked to stop under load, and finally killed.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import distributions
from pathlib import Path

import httpx
import psutil
from _load.server import DEMO, HOST, Server, clean_environment, free_port, run_server, running
from _peers.environment import Environment, PeerUnavailable
from openai import OpenAI, OpenAIError

SETTINGS = {"GENAI_MODEL_DIR": str(DEMO), "GENAI_MAX_BATCH_SIZE": "8"}
_MODEL = "demo"
_SECONDS_TO_START = 60.0
_SECONDS_TO_INSTALL = 600.0
# Tokens of the streams that are timed, and how many short requests come before them.
_STREAMED = 129
_SHORT = 5


# By default they ask every minute, send to a dead server until five or ten requests in a row have failed there, and try
# it again after half a minute or a whole one.
NOTICES_SOON = (
    *("--health-check-interval-secs", "2"),
    *("--cb-failure-threshold", "2"),
    *("--cb-timeout-duration-secs", "5"),
)


@dataclass(frozen=True)
class Router:
    """A router that pip installs."""

    package: str
    command: tuple[str, ...]
    # Its names of the policies.
    cache_aware: str = "cache_aware"
    round_robin: str = "round_robin"

    def line(self, folder: Path, workers: Sequence[str], port: int, policy: str) -> list[str]:
        """The command line; docs/scale-out.md has it, too."""
        program, *arguments = self.command
        ports = ["--host", HOST, "--port", str(port), "--prometheus-port", str(free_port())]
        command = [str(folder / program), *arguments, "--worker-urls", *workers, "--policy", policy]
        return [*command, *NOTICES_SOON, *ports]


_OVERHEADS = ("a request, ms", "a token, µs", "processor: a request, µs", "a token, µs")
_POLICIES = ("round robin: cached", "cache-aware: cached", "one server drains", "one is killed")
ROUTERS = {
    "vllm-router": Router("vllm-router", ("vllm-router",)),
    "smg": Router("smg", ("smg", "launch")),
    "sglang-router": Router("sglang-router", ("python", "-m", "sglang_router.launch_router")),
}


@dataclass
class Overhead:
    """What a router adds to a request and to each token of its stream, in seconds, of time and of its processor's."""

    request: float
    token: float
    request_processor: float
    token_processor: float


@dataclass
class Found:
    """The measurements of one router."""

    version: str
    overhead: Overhead
    # Shares of prompt tokens found in the caches, by policy.
    hits: dict[str, float] = field(default_factory=dict)
    # Answers by "answered" or the error, while a server drains, and while and after one is killed.
    drained: Counter[str] = field(default_factory=Counter)
    killed: Counter[str] = field(default_factory=Counter)


@contextmanager
def routed(router: Router, folder: Path, workers: Sequence[str], policy: str) -> Iterator[tuple[str, int]]:
    """Run a router in front of some servers; yields its URL and process once it answers for the model."""
    port = free_port()
    url = f"http://{HOST}:{port}"

    def is_up() -> bool:
        try:
            return all(_ask(url, "Hi", tokens=1) for _ in workers)
        except OpenAIError:
            return False

    log = folder.parent / f"{router.package}-{policy}.log"
    command = router.line(folder, workers, port, policy)
    with running(command, clean_environment(), log, is_up, _SECONDS_TO_START) as pid:
        yield url, pid


def _client(url: str) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)


def _ask(url: str, text: str, *, tokens: int = 16) -> bool:
    answer = _client(url).chat.completions.create(
        model=_MODEL, messages=[{"role": "user", "content": text}], max_tokens=tokens
    )
    return answer.choices[0].finish_reason is not None


def check_answers(url: str) -> None:
    """An answer in one piece and the same as a stream. Raises AssertionError."""
    client = _client(url)
    question = "What is the capital of France?"
    plain = client.chat.completions.create(
        model=_MODEL, messages=[{"role": "user", "content": question}], temperature=0
    )
    stream = client.chat.completions.create(
        model=_MODEL, messages=[{"role": "user", "content": question}], temperature=0, stream=True
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert plain.choices[0].message.content == text != ""


def overhead(url: str, pid: int, direct: str, rounds: int) -> Overhead:
    """What a router adds to a request and to each token.

    Each round measures both, so that other load affects both alike; the medians of rounds are compared. The router's
    processor time is independent of other load.
    """
    requests: dict[str, list[float]] = {url: [], direct: []}
    tokens: dict[str, list[float]] = {url: [], direct: []}
    used = [0.0, 0.0]
    with httpx.Client(timeout=30) as client:
        for number in range(rounds):
            for address in (url, direct) if number % 2 else (direct, url):
                before = processor_seconds(pid)
                requests[address].append(min(_seconds(client, address, 1) for _ in range(_SHORT)))
                between = processor_seconds(pid)
                stream = min(_seconds(client, address, _STREAMED) for _ in range(2))
                tokens[address].append((stream - requests[address][-1]) / (_STREAMED - 1))
                if address == url:
                    used[0] += between - before
                    used[1] += processor_seconds(pid) - between
    request, token = (statistics.median(of[url]) - statistics.median(of[direct]) for of in (requests, tokens))
    each = used[0] / rounds / _SHORT
    return Overhead(request, token, each, max(0.0, used[1] / rounds / 2 - each) / (_STREAMED - 1))


def processor_seconds(pid: int) -> float:
    """The processor time of a process and its children."""
    process = psutil.Process(pid)
    return sum(sum(each.cpu_times()[:2]) for each in (process, *process.children(recursive=True)))


def _seconds(client: httpx.Client, url: str, tokens: int) -> float:
    """Seconds that a stream of this number of tokens takes. A seed keeps drafts from shortening it."""
    body = {"model": _MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": tokens, "stream": True}
    began = time.perf_counter()
    more = {"ignore_eos": True, "temperature": 1, "seed": 1}
    with client.stream("POST", f"{url}/v1/chat/completions", json=body | more) as response:
        response.raise_for_status()
        response.read()
    return time.perf_counter() - began


def cached_tokens(servers: Sequence[Server]) -> tuple[float, float]:
    """Tokens of prompts that were found in the caches of all servers, and that were looked for."""
    hits = queries = 0.0
    for server in servers:
        for line in httpx.get(f"http://{HOST}:{server.port}/metrics").text.splitlines():
            if line.startswith("genai:prefix_cache_hits_total{"):
                hits += float(line.rpartition(" ")[2])
            elif line.startswith("genai:prefix_cache_queries_total{"):
                queries += float(line.rpartition(" ")[2])
    return hits, queries


def converse(url: str, num_conversations: int, num_turns: int, seed: int) -> None:
    """Concurrent conversations by turns, each with one of a few system prompts: the same ones for a seed."""
    chance = random.Random(seed)
    words = ["red", "blue", "one", "two", "sun", "moon", "sea", "land", "old", "new", "day", "night"]
    systems = [" ".join(chance.choices(words, k=200)) for _ in range(max(2, num_conversations // 4))]
    talks = [[{"role": "system", "content": chance.choice(systems)}] for _ in range(num_conversations)]
    client = _client(url)

    def turn(talk: list[dict[str, str]], question: str) -> None:
        talk.append({"role": "user", "content": question})
        answer = client.chat.completions.create(model=_MODEL, messages=talk, max_tokens=16)
        talk.append({"role": "assistant", "content": answer.choices[0].message.content or ""})

    with ThreadPoolExecutor(4) as pool:
        for _ in range(num_turns):
            questions = [" ".join(chance.choices(words, k=20)) for _ in talks]
            list(pool.map(turn, chance.sample(talks, len(talks)), questions))
            time.sleep(1.2)  # engines report their counters once a second


def hit_rate(url: str, servers: Sequence[Server], num_conversations: int, num_turns: int, seed: int) -> float:
    """The share of the conversations' prompt tokens that the servers found in their caches."""
    for server in servers:
        httpx.post(f"http://{HOST}:{server.port}/reset_prefix_cache").raise_for_status()
    hits, queries = cached_tokens(servers)
    converse(url, num_conversations, num_turns, seed)
    more_hits, more_queries = cached_tokens(servers)
    return (more_hits - hits) / (more_queries - queries)


def ask_through(url: str, act: Callable[[], None], seconds: float) -> Counter[str]:
    """Four clients ask without a pause; after a third of the time something happens. Returns how requests ended."""
    ended: Counter[str] = Counter()
    lock = threading.Lock()
    end = time.monotonic() + seconds

    def ask(number: int) -> None:
        while time.monotonic() < end:
            try:
                how = "answered" if _ask(url, f"Count from {number} to 20.") else "empty"
            except OpenAIError as error:
                how = str(getattr(error, "status_code", None) or type(error).__name__)
            with lock:
                ended[how] += 1

    with ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(ask, number) for number in range(4)]
        time.sleep(seconds / 3)
        act()
        for future in asking:
            future.result()
    return ended


def install(router: Router, folder: Path) -> Path:
    """Install a router if necessary; returns the folder of its commands. Raises PeerUnavailable."""
    folder.mkdir(parents=True, exist_ok=True)
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    Environment(folder).install([router.package], uv=Path(uv) if uv else None, seconds=_SECONDS_TO_INSTALL)
    return folder / "bin"


def version_in(folder: Path, package: str) -> str:
    """The version of a package in an environment."""
    found = distributions(name=package, path=[str(path) for path in folder.glob("lib/python*/site-packages")])
    return next((each.version for each in found), "")


def check(name: str, work: Path, *, quick: bool, only_overhead: bool) -> Found:
    """Measure one router. Raises PeerUnavailable, DoesNotStart and AssertionError."""
    router = ROUTERS[name]
    folder = install(router, work / name)
    version = version_in(work / name, router.package)
    conversations, turns, rounds, seconds = (8, 3, 5, 6.0) if quick else (32, 4, 20, 15.0)
    with ExitStack() as stack:
        folders = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(3)]
        one, other = (stack.enter_context(run_server(folder, SETTINGS)) for folder in folders[:2])
        urls = [f"http://{HOST}:{server.port}" for server in (one, other)]
        hits = {}
        for policy in (router.round_robin, router.cache_aware):
            with routed(router, folder, urls, policy) as (url, pid):
                check_answers(url)
                if policy == router.round_robin:
                    added = overhead(url, pid, urls[0], rounds)
                if only_overhead:
                    return Found(version, added)
                hits[policy] = hit_rate(url, (one, other), conversations, turns, seed=1)
        with routed(router, folder, urls, router.round_robin) as (url, _):
            drained = ask_through(url, lambda: os.kill(other.pid, signal.SIGTERM), seconds)
            third = stack.enter_context(run_server(folders[2], SETTINGS))
        with routed(router, folder, [urls[0], f"http://{HOST}:{third.port}"], router.round_robin) as (url, _):
            killed = ask_through(url, lambda: os.killpg(third.pid, signal.SIGKILL), seconds)
    return Found(version, added, hits, drained, killed)


def shown(ended: Counter[str]) -> str:
    """How requests ended, in words."""
    failed = {how: number for how, number in sorted(ended.items()) if how != "answered"}
    failures = ", ".join(f"{number} {how}" for how, number in failed.items()) or "none failed"
    return f"{ended['answered']} answered, {failures}"


def cells(router: Router, found: Found) -> list[str]:
    """The cells of a row of the table."""
    added = found.overhead
    cells = [f"{added.request * 1e3:.1f}", f"{added.token * 1e6:.0f}"]
    cells += [f"{added.request_processor * 1e6:.0f}", f"{added.token_processor * 1e6:.0f}"]
    if found.hits:
        cells += [f"{found.hits[policy]:.0%}" for policy in (router.round_robin, router.cache_aware)]
        cells += [shown(found.drained), shown(found.killed)]
    return cells


def main() -> None:
    """Check each router and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("routers", nargs="*", metavar="ROUTER", help=f"of {', '.join(ROUTERS)}; all without")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "genai-server-routers")
    parser.add_argument("--quick", action="store_true", help="few requests")
    parser.add_argument("--overhead", action="store_true", help="only what a router adds to a request and a token")
    arguments = parser.parse_args()
    unknown = set(arguments.routers) - ROUTERS.keys()
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: known are {', '.join(ROUTERS)}")
    columns = _OVERHEADS if arguments.overhead else (*_OVERHEADS, *_POLICIES)
    print(f"| router | {' | '.join(columns)} |")
    print("|---" * (len(columns) + 1) + "|")
    failed = False
    for name in arguments.routers or ROUTERS:
        try:
            found = check(name, arguments.work, quick=arguments.quick, only_overhead=arguments.overhead)
        except (PeerUnavailable, RuntimeError, AssertionError) as error:
            failed = True
            print(f"| {name} | {' '.join(str(error).split())[-300:] or repr(error)} |", flush=True)
            continue
        print(f"| {name} {found.version} | {' | '.join(cells(ROUTERS[name], found))} |", flush=True)
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
