"""The work on requests before they reach an engine, over real sockets: the bound of what a key lets wait, and turns of
keys between API processes.
"""

import http.client
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from genai_server.http.api_keys import line_of
from genai_server.workers.process import WorkerProcess
from tests.running_server import (
    PATIENCE,
    RunningServer,
    api_processes,
    body,
    command_line,
    run_server,
    suspended,
    wait_until,
)
from tests.server_here import run_here

KEYS = {name: f"{name}-0123456789abcdef" for name in ("alice", "bob")}
_BOUND = 300


def _key_file(folder: Path) -> str:
    (folder / "keys").write_text("\n".join(line_of(name, key) for name, key in KEYS.items()))
    return str(folder / "keys")


def _asked(title: str) -> dict[str, Any]:
    """A request whose grammar has been checked for nobody."""
    schema = {"type": "object", "properties": {title: {"type": "integer"}}, "required": [title]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}
    return body("say hi", model="demo", response_format=form, max_tokens=1)


def _headers(holder: str) -> dict[str, str]:
    return {"authorization": f"Bearer {KEYS[holder]}"}


# the bound of what waits


@pytest.fixture
def held_checks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Grammars are not checked until this is called."""
    goes_on = threading.Event()

    def ask(process: WorkerProcess, question: Mapping[str, Any], data: bytes, timeout: float) -> dict[str, Any]:
        assert goes_on.wait(PATIENCE)
        return {"error": None}

    monkeypatch.setattr(WorkerProcess, "ask", ask)
    yield goes_on.set
    goes_on.set()


def test_more_waiting_work_of_a_key_is_a_503_with_the_limit(tmp_path: Path, held_checks: Callable[[], None]) -> None:
    limits = ("--preparation-processes", "1", "--max-waiting-grammar-bytes", f"{_BOUND}")
    with (
        run_here(tmp_path, "--device", "scripted", "--api-key-file", _key_file(tmp_path), *limits) as server,
        ThreadPoolExecutor(8) as threads,
    ):

        def ask(holder: str, title: str) -> "Future[httpx.Response]":
            headers = {**_headers(holder), "connection": "close"}
            url = f"{server.url}/v1/chat/completions"
            return threads.submit(httpx.post, url, json=_asked(title), headers=headers, timeout=PATIENCE)

        # One is checked, one waits, and the others are refused.
        asked = {ask("alice", f"a{number}") for number in range(4)}
        refused: set[Future[httpx.Response]] = set()
        while len(refused) < 2:
            done, _ = wait(asked - refused, PATIENCE, FIRST_COMPLETED)
            assert done
            refused |= done
        of_bob = [ask("bob", f"b{number}") for number in range(2)]
        for one in refused:
            response = one.result()
            error = response.json()["error"]
            assert (response.status_code, error["code"]) == (503, "queue_full")
            assert int(response.headers["retry-after"]) >= 1
            words = re.fullmatch(
                r"grammars with (\d+) bytes wait to be prepared for this API key already: "
                r"GENAI_MAX_WAITING_GRAMMAR_BYTES lets (\d+) wait, given (\d+) more",
                error["message"],
            )
            assert words is not None, response.text
            waiting, limit, given = map(int, words.groups())
            assert limit == _BOUND < waiting + given
        held_checks()
        assert [one.result().status_code for one in (*(asked - refused), *of_bob)] == [200] * 4


# several API processes


class Connections:
    """Connections to a server of several API processes, by the process at their other ends."""

    def __init__(self, server: RunningServer, stack: ExitStack) -> None:
        self._server = server
        self._stack = stack
        self._unused: dict[int, list[http.client.HTTPConnection]] = {}

    def to(self, process: int) -> http.client.HTTPConnection:
        """A connection to the process with this id."""
        for _ in range(200):
            if self._unused.get(process):
                return self._unused[process].pop()
            connection = http.client.HTTPConnection(self._server.url.removeprefix("http://"), timeout=60)
            self._stack.enter_context(closing(connection))
            connection.request("GET", "/livez")
            connection.getresponse().read()
            port = connection.sock.getsockname()[1]
            (at_end,) = (
                found.pid
                for found in api_processes(self._server)
                if port in (getattr(one.raddr, "port", None) for one in found.net_connections("inet"))
            )
            self._unused.setdefault(at_end, []).append(connection)
        raise AssertionError("no connection reached the process")


def _ask(connection: http.client.HTTPConnection, holder: str, title: str) -> int:
    """The status of a request's response."""
    headers = {"content-type": "application/json", **_headers(holder)}
    connection.request("POST", "/v1/chat/completions", json.dumps(_asked(title)), headers)
    response = connection.getresponse()
    response.read()
    return response.status


def _checkers(server: RunningServer) -> list[psutil.Process]:
    """The processes that check grammars, of all API processes."""
    children = psutil.Process(server.process.pid).children(recursive=True)
    return [child for child in children if "grammar_checker.compiler" in " ".join(command_line(child))]


@pytest.mark.slow
def test_keys_take_turns_between_api_processes(own_folder: Path) -> None:
    limits = ("--preparation-processes", "1", "--grammar-timeout", "60")
    keys = ("--api-key-file", _key_file(own_folder))
    with (
        run_server(own_folder, "--device", "scripted", "--workers", "2", *keys, *limits, seconds=120) as server,
        ExitStack() as stack,
        ThreadPoolExecutor(8) as threads,
    ):
        wait_until(lambda: len(api_processes(server)) == 2)
        connections = Connections(server, stack)
        first, second = (process.pid for process in api_processes(server))
        assert _ask(connections.to(first), "alice", "warm") == 200
        (checker,) = _checkers(server)
        of_alice = [connections.to(first), connections.to(second)]
        of_bob = connections.to(second)
        with suspended(checker):
            # Only one of them is being checked: both API processes have the same pool.
            asked = [threads.submit(_ask, connection, "alice", f"a{n}") for n, connection in enumerate(of_alice)]
            # A key of which nothing is checked does not wait for another one, and its next one comes before Alice's.
            assert [_ask(of_bob, "bob", f"b{number}") for number in range(5)] == [200] * 5
            assert [one.done() for one in asked] == [False, False]
            assert len(_checkers(server)) == 2
        assert [one.result(90) for one in asked] == [200, 200]
