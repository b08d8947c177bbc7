"""A third-party router in front of two servers with the demo model, as described in docs/scale-out.md.

The router is vLLM's, of the extra `router`, and its command line is the document's.
"""

import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import psutil
import pytest
from openai import OpenAI

# The tests of a single server, which use this module's fixture `client` here.
from tests.apis.test_openai_client import (  # noqa: F401
    test_a_forced_call_parses_and_fits_its_schema,
    test_streaming_helper_returns_the_object_of_the_plain_call,
)
from tests.running_server import DEMO, ROOT, EventReader, RunningServer, free_port, run_server, wait_until
from tests.scraped import scrape

CHAT = "/v1/chat/completions"
# The router polls its servers every two seconds, and a busy machine is slow.
SECONDS = 90.0

pytestmark = pytest.mark.timeout(300)


@dataclass
class Replica:
    """A server at one address that a test may end and restart."""

    folder: Path
    port: int = field(default_factory=free_port)
    _open: ExitStack = field(default_factory=ExitStack)
    _server: RunningServer | None = None

    def server(self) -> RunningServer:
        """The running server."""
        if self._server is None or self._server.process.poll() is not None:
            self.close()
            options = ("--model-dir", str(DEMO), "--threads", "1")
            self._server = self._open.enter_context(run_server(self.folder, *options, seconds=SECONDS, port=self.port))
        return self._server

    def close(self) -> None:
        """End it if it runs."""
        self._open.close()


class Routed(NamedTuple):
    """A router, a server that all tests share, and another one that they may end."""

    http: httpx.Client
    shared: RunningServer
    other: Replica

    def servers(self) -> list[RunningServer]:
        return [self.shared, self.other.server()]

    def num_running(self) -> list[int]:
        return [server.device("cpu")["running"] for server in self.servers()]

    def say(self, content: str, **fields: Any) -> httpx.Response:
        """An answer through the router."""
        return self.http.post(CHAT, json=_body(content, **fields))

    def is_whole(self, content: str, **fields: Any) -> bool:
        """Whether a stream reaches its end."""
        try:
            with self.http.stream("POST", CHAT, json=_body(content, stream=True, **fields)) as response:
                return list(EventReader(response))[-1:] == ["[DONE]"]
        except httpx.TransportError:
            return False


def _body(content: str, **fields: Any) -> dict[str, Any]:
    return {"model": "demo", "messages": [{"role": "user", "content": content}], **fields}


def _long(number: int, tokens: int = 1500) -> dict[str, Any]:
    """A request for this number of tokens with a unique start of its prompt."""
    text = f"{number * 7919} is a number."
    return {"content": text, "max_tokens": tokens, "ignore_eos": True, "temperature": 1, "seed": number}


def _documented(urls: list[str], port: int) -> list[str]:
    """The document's first command, with its addresses replaced by these."""
    text = (ROOT / "docs" / "scale-out.md").read_text(encoding="utf-8")
    found = re.search(r"^vllm-router .*--policy cache_aware(.*\\\n)*.*", text, re.MULTILINE)
    assert found is not None
    names = {"http://a:8002": urls[0], "http://b:8002": urls[1], "0.0.0.0": "127.0.0.1", "8000": str(port)}
    return [names.get(word, word) for word in shlex.split(found[0].replace("\\\n", " "))]


@pytest.fixture(scope="module")
def module_routed(demo: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Routed]:
    program = shutil.which("vllm-router", path=str(Path(sys.executable).parent)) or shutil.which("vllm-router")
    if program is None:
        pytest.skip("vllm-router is not installed (extra router, for Linux on x86-64)")
    folder = tmp_path_factory.mktemp("routed")
    other = Replica(folder)
    with closing(other):
        port = free_port()
        _, *arguments = _documented([demo.url, other.server().url], port)
        log = (folder / "router.log").open("wb")
        command = [program, *arguments, "--prometheus-port", str(free_port())]
        with log, subprocess.Popen(command, stdout=log, stderr=log) as process:
            try:
                with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=SECONDS) as http:
                    routed = Routed(http, demo, other)
                    wait_until(lambda: _is_up(http), SECONDS)
                    yield routed
            finally:
                process.kill()


def _is_up(http: httpx.Client) -> bool:
    try:
        return http.get("/v1/models").status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture
def routed(module_routed: Routed) -> Iterator[Routed]:
    """Both servers run, and the router knows it."""
    module_routed.other.server().recover()
    _use_both(module_routed)
    yield module_routed
    module_routed.shared.recover()


_numbers = iter(range(1, 100_000))


def _use_both(routed: Routed) -> None:
    """Send unique requests until both servers have answered.

    Two requests are in flight at a time: among idle servers, the router always prefers the same one.
    """
    before = [_num_answers(server) for server in routed.servers()]

    def is_used() -> bool:
        with ThreadPoolExecutor(2) as pool:
            for _ in range(2):
                pool.submit(routed.say, **_long(next(_numbers), 8))
        now = [_num_answers(server) for server in routed.servers()]
        return all(after > once for after, once in zip(now, before, strict=True))

    wait_until(is_used, SECONDS)


def _num_answers(server: RunningServer) -> float:
    return scrape(server).value("request_success_total")


@pytest.fixture
def client(module_routed: Routed) -> Iterator[OpenAI]:
    with OpenAI(base_url=str(module_routed.http.base_url.join("v1")), api_key="none", max_retries=0) as client:
        yield client


def _stream_on_both(routed: Routed, pool: ThreadPoolExecutor) -> list["Future[bool]"]:
    """Long streams, until each server has one."""
    streams: list[Future[bool]] = []

    def has_both() -> bool:
        if sum(routed.num_running()) >= sum(not stream.done() for stream in streams):
            streams.append(pool.submit(routed.is_whole, **_long(next(_numbers))))
        return all(routed.num_running())

    wait_until(has_both, SECONDS)
    return streams


def test_killed_server_breaks_only_its_streams_and_is_reused(routed: Routed) -> None:
    with ThreadPoolExecutor(4) as pool:
        streams = _stream_on_both(routed, pool)
        killed = routed.other.server().process
        family = psutil.Process(killed.pid).children(recursive=True)
        kept, _ = routed.num_running()
        killed.kill()
        killed.wait()
        answered = [routed.say("Hi", max_tokens=1).status_code for _ in range(4)]
        whole = [stream.result() for stream in streams]
    # The router sends a stream that has not started to the other server.
    assert kept <= sum(whole) < len(whole)
    assert answered == [200] * 4
    psutil.wait_procs(family, 20)
    _use_both(routed)


def test_conversation_finds_its_prefix_while_servers_are_loaded(routed: Routed) -> None:
    ended = threading.Event()

    def ask_on() -> None:
        while not ended.is_set():
            assert routed.say(**_long(next(_numbers), 8)).status_code == 200

    talk = [{"role": "system", "content": "You know the numbers. " + " ".join(map(str, range(100, 220)))}]
    shares = []
    with ThreadPoolExecutor(3) as pool:
        others = [pool.submit(ask_on) for _ in range(3)]
        for turn in range(5):
            talk.append({"role": "user", "content": f"What comes after {turn}?"})
            answer = routed.http.post(CHAT, json={"messages": talk, "max_tokens": 8}).json()
            talk.append(answer["choices"][0]["message"])
            usage = answer["usage"]
            shares.append(usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"])
        ended.set()
        for other in others:
            other.result()
    assert min(shares[1:]) >= 0.9, shares


def test_sessions_are_terminated_and_profiled_per_server(routed: Routed) -> None:
    one, other = routed.servers()
    one.options(terminate_session="1")
    assert {routed.say(**_long(next(_numbers), 1)).status_code for _ in range(6)} == {200}
    other.options(terminate_session="1")
    assert routed.say("Hi").status_code == 503
    for server in (one, other):
        server.recover()
    _use_both(routed)
    for server in (one, other):
        server.options(enable_profiling="routed")
    _use_both(routed)
    for server in (one, other):
        server.options(enable_profiling="0")
        state = server.client.get("/v1/admin/runtime_options").json()["devices"]["cpu"]
        assert state["enable_profiling"] == "0"
        assert list(Path(state["profile_dir"]).glob("routed*"))


def test_draining_server_ends_its_stream_and_refuses_nothing(routed: Routed) -> None:
    with ThreadPoolExecutor(4) as pool:
        streams = _stream_on_both(routed, pool)
        leaving = routed.other.server()
        leaving.process.terminate()
        answered = [routed.say(**_long(next(_numbers), 1)).status_code for _ in range(6)]
        assert all(stream.result() for stream in streams)
        assert leaving.process.wait(SECONDS) == 0
    assert answered == [200] * 6
