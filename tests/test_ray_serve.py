"""Replicas on Ray Serve act as one server for clients: answers, streams, crashes, drains, caches and admin calls.

`genai-server deploy ray` starts a cluster with two replicas of the demo model, which all tests share.
"""

import json
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from openai import OpenAI

from tests.running_server import (
    DEMO,
    ROOT,
    EventReader,
    RunningServer,
    body,
    clean_environment,
    folders,
    has_ended,
    run_server,
    running_after,
    wait_until,
)

pytestmark = [
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray Serve is not installed (extra ray)"),
    pytest.mark.cluster,
    pytest.mark.timeout(900),
    pytest.mark.skipif(sys.platform == "win32", reason="engines are suspended by signals"),
]

KEY = "an-admin-key-for-the-tests"
REPLICA = "x-genai-replica"
# Waiting costs no processor time; Ray's processes start slowly on a busy machine.
PATIENCE = 600.0
PLACES = 12
CHAT = "/v1/chat/completions"
PROGRAM = (sys.executable, "-m", "genai_server", "deploy", "ray")
SETTINGS = {
    "GENAI_ADMIN_API_KEY": KEY,
    "GENAI_MODEL_DIR": str(DEMO),
    "GENAI_MAX_BATCH_SIZE": "8",
    "GENAI_MAX_QUEUE": str(PLACES - 8),
    "GENAI_DRAIN_TIMEOUT": "120",
    # Tests suspend engines.
    "GENAI_STEP_TIMEOUT": "0",
    # A device fails for good when its engine dies.
    "GENAI_MAX_RESTARTS": "0",
    # Instead of a file in the user's folder.
    "RAY_AUTH_TOKEN": secrets.token_hex(16),
    "RAY_raylet_start_wait_time_s": "300",
    # On a busy machine a proxy imports for longer than the 5 s after which Ray would replace it, again and again.
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    # Replicas on a busy machine report their load late, and others would receive all requests.
    "RAY_SERVE_QUEUE_LENGTH_RESPONSE_DEADLINE_S": "1",
}


@pytest.fixture(scope="module")
def settings() -> Iterator[Mapping[str, str]]:
    """Settings of all processes that use the cluster, with files in a folder whose short name suits Ray's sockets."""
    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")
    yield SETTINGS | {"RAY_TMPDIR": folder}
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def demo(settings: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Replaces the single server with the demo model."""
    folder = tmp_path_factory.mktemp("ray")
    with run_server(folder, "--replicas", "2", settings=settings, program=PROGRAM, seconds=PATIENCE) as server:
        server.client.headers["authorization"] = f"Bearer {KEY}"
        server.client.timeout = httpx.Timeout(PATIENCE)
        _wait_until(lambda: len(_engines(server)) == 2)
        yield server


@pytest.fixture
def client(demo: RunningServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{demo.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def _engines(server: RunningServer) -> dict[str, psutil.Process]:
    """The engine of each working replica; empty while no replica answers."""
    replicas = server.health().get("replicas", {})
    devices = {name: one["body"]["devices"]["cpu"] for name, one in replicas.items() if one["status"] == 200}
    working = {name: device["pid"] for name, device in devices.items() if device["state"] == "ready"}
    # A crash may not be noticed yet.
    return {name: psutil.Process(pid) for name, pid in working.items() if psutil.pid_exists(pid)}


def _replica(engine: psutil.Process) -> psutil.Process:
    """The process of an engine's replica, which has started the supervisor that has started the engine."""
    return engine.parents()[1]


def _ask(server: RunningServer, content: str, **fields: Any) -> httpx.Response:
    return server.client.post(CHAT, json=body(content, **fields))


@contextmanager
def _suspended_streams(server: RunningServer) -> Iterator[dict[str, EventReader]]:
    """A long stream on each replica; the engines are suspended after the first tokens until the block ends."""
    engines = _engines(server)
    streams: dict[str, EventReader] = {}
    with ExitStack() as stack:
        number = 0
        while streams.keys() != engines.keys():
            number += 1
            assert number < 100
            fields: dict[str, Any] = {"stream": True, "ignore_eos": True, "max_tokens": 1500}
            # A new prompt goes to the replica that received less. A second stream on one replica is closed again.
            with ExitStack() as own:
                events = own.enter_context(server.stream(f"{number}: tell me more", path=CHAT, **fields))
                assert events.response.status_code == 200, events.response.read()
                next(iter(events))
                if streams.setdefault(events.response.headers[REPLICA], events) is events:
                    stack.enter_context(own.pop_all())
        for engine in engines.values():
            engine.suspend()
            stack.callback(_resume, engine)
        yield streams


def _wait_until(condition: Callable[[], bool]) -> None:
    """Poll rarely: a call of all replicas takes more processor time than some tests."""
    wait_until(condition, PATIENCE, least=0.5)


def _resume(process: psutil.Process) -> None:
    if not has_ended(process):
        process.resume()


def test_a_stream_comes_token_by_token(demo: RunningServer) -> None:
    with demo.stream("What is the capital of France?", path=CHAT, stream=True) as events:
        chunks = [raw for raw in events.response.iter_raw() if b"content" in raw]
    assert len(chunks) > 3


@pytest.mark.parametrize(
    ("path", "content"),
    [
        (CHAT, b"{"),
        (CHAT, b"{}"),
        (CHAT, json.dumps(body("x", temperature=9)).encode()),
        (CHAT, json.dumps(body("x", model="gpt-9")).encode()),
        (CHAT, json.dumps(body("x" * 2_000_000)).encode()),
        ("/v1/messages", json.dumps(body("x")).encode()),
        ("/api/chat", json.dumps({"messages": 1}).encode()),
        ("/v1/nothing", b"{}"),
    ],
)
def test_invalid_request_is_answered_as_by_a_single_server(
    path: str, content: bytes, demo: RunningServer, shared_demo: RunningServer
) -> None:
    headers = {"content-type": "application/json", "x-request-id": "mine"}
    found, expected = (
        httpx.post(f"{server.url}{path}", content=content, headers=headers, timeout=PATIENCE)
        for server in (demo, shared_demo)
    )
    assert (found.status_code, found.json()) == (expected.status_code, expected.json())
    assert found.headers.get_list("x-request-id") == ["mine"]


def test_conversation_finds_its_prefix_while_replicas_are_loaded(demo: RunningServer) -> None:
    stop = threading.Event()

    def conversation(number: int, turns: int) -> Iterator[tuple[str, float]]:
        """The replica of each turn, and the cached share of its prompt."""
        messages = [{"role": "system", "content": f"You are guide {number} to the cities of the world. " * 30}]
        for turn in range(turns):
            messages.append({"role": "user", "content": f"And {turn}?"})
            answer = demo.client.post(CHAT, json={"messages": messages, "max_tokens": 8})
            text, usage = answer.json()["choices"][0]["message"]["content"], answer.json()["usage"]
            messages.append({"role": "assistant", "content": text})
            yield answer.headers[REPLICA], usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"]

    def load(number: int) -> set[str]:
        loaded = set()
        while not stop.is_set():
            loaded |= {replica for replica, _ in conversation(number, 2)}
        return loaded

    with ThreadPoolExecutor(3) as threads:
        # The first turn of each selects its replica.
        loads = [threads.submit(load, number) for number in range(3) if list(conversation(number, 1))]
        turns = list(conversation(3, 5))
        stop.set()
    assert set().union(*(one.result() for one in loads)) == _engines(demo).keys()
    assert len({replica for replica, _ in turns}) == 1
    assert min(share for _, share in turns[1:]) >= 0.9


def test_admin_calls_reach_all_replicas_or_the_named_one(demo: RunningServer) -> None:
    one, other = _engines(demo)
    terminated = demo.options(terminate_session="1").json()["replicas"]
    assert {name: found["status"] for name, found in terminated.items()} == {one: 200, other: 200}
    refused = _ask(demo, "hello")
    assert (refused.status_code, "retry-after" in refused.headers) == (503, False)  # until when is unknown
    assert refused.json()["error"]["code"] == "session_terminated"

    path = "/v1/admin/runtime_options"
    named = demo.client.post(path, json={"terminate_session": "0"}, headers={REPLICA: one}).json()["replicas"]
    assert named.keys() == {one}
    states = demo.client.get(path).json()["replicas"]
    found = {name: state["body"]["devices"]["cpu"]["terminate_session"] for name, state in states.items()}
    assert found == {one: "0", other: "1"}
    demo.recover()


def test_disconnected_clients_sequence_ends(demo: RunningServer) -> None:
    with _suspended_streams(demo) as streams:
        replicas = set(streams)
    _wait_until(lambda: demo.client.get("/v1/requests").json()["data"] == [])
    metrics = demo.client.get("/metrics").text
    aborted = re.findall(r'request_success_total{.*finished_reason="abort".*replica="(\w+)"}', metrics)
    assert set(aborted) == replicas


def test_hung_replica_is_named_and_delays_no_health_check(demo: RunningServer) -> None:
    hung, well = _engines(demo)
    replica = _replica(_engines(demo)[hung])
    replica.suspend()
    try:
        assert [demo.client.get(path).status_code for path in ("/health", "/livez", "/v1/models")] == [200, 200, 200]
        found = demo.health()["replicas"]
        # It hangs to the end without being replaced by Serve, so no call has waited for that.
        assert {name: one["status"] for name, one in found.items()} == {hung: 503, well: 200}
        assert replica.status() == psutil.STATUS_STOPPED
    finally:
        replica.resume()
    _wait_until(lambda: demo.client.get("/healthz").status_code == 200)


def test_dead_replica_fails_its_own_streams_and_is_replaced(demo: RunningServer) -> None:
    before = _engines(demo)
    with _suspended_streams(demo) as streams:
        (killed, events), (other, others) = streams.items()
        _replica(before[killed]).kill()
        last = list(events)[-1]
        assert json.loads(last)["error"]["code"] == "engine_died"
        assert demo.client.get("/health").status_code == 200
        before[other].resume()
        assert list(others)[-1] == "[DONE]"
        assert _ask(demo, "hello").status_code == 200
    assert running_after([before[killed]], 10.0) == []
    before[other].kill()
    _wait_until(lambda: len(_engines(demo).keys() - before.keys()) == 2)


def test_scaling_down_cuts_no_stream(demo: RunningServer, settings: Mapping[str, str], tmp_path: Path) -> None:
    before = _engines(demo)
    port = demo.url.rpartition(":")[2]
    address = re.findall(r"the address of the cluster is ([\d.:]+)", demo.log())[0]
    command = [*PROGRAM, "--address", address, "--port", port]
    with (tmp_path / "log").open("wb") as log, _suspended_streams(demo) as streams:
        deploying = subprocess.Popen(
            command, cwd=ROOT, env=clean_environment(**settings, **folders(demo.folder)), stdout=log, stderr=log
        )
        _wait_until(lambda: deploying.poll() is not None or len(_engines(demo)) == 1)
        for engine in before.values():
            engine.resume()
        assert [list(events)[-1] for events in streams.values()] == ["[DONE]", "[DONE]"]
        status = deploying.wait(PATIENCE)
    assert status == 0, (tmp_path / "log").read_text()
    (left,) = _engines(demo)
    assert left in before


def test_a_signal_ends_the_cluster_after_its_streams(demo: RunningServer) -> None:
    """The last test of the cluster."""
    engines = _engines(demo)
    with _suspended_streams(demo) as streams:
        demo.process.terminate()
        _wait_until(lambda: demo.client.get("/health").status_code == 404)
        for engine in engines.values():
            engine.resume()
        assert {list(events)[-1] for events in streams.values()} == {"[DONE]"}
    assert demo.process.wait(PATIENCE) == 0
    assert running_after(engines.values(), 10.0) == []
