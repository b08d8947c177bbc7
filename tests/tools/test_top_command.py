"""`genai-server top`: its figures of a server, and its display."""

import io
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from genai_server.errors import ServerUnusable
from genai_server.tools.top_tables import ORDERS, Choice, Interval, ModelDevice, Poller, Snapshot, view
from tests.fork_server import ForkedProcess
from tests.running_server import (
    PATIENCE,
    RunningServer,
    clean_environment,
    free_port,
    last_event,
    run_command,
    start_command,
)
from tests.server_here import run_here

CPU = ModelDevice("m", "cpu")


def _snapshot(at: float, **values: float) -> Snapshot:
    return Snapshot(at, {}, {(name, CPU): value for name, value in values.items()})


def _top(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return run_command("top", *arguments, environment=clean_environment(COLUMNS="200"))


def test_rates_and_means_are_of_the_time_between_two_looks() -> None:
    first = _snapshot(10, tokens_total=100, gap_sum=1, gap_count=4)
    interval = Interval(first, _snapshot(12, tokens_total=150, gap_sum=2, gap_count=8))
    assert (interval.rate("tokens_total", CPU), interval.mean("gap", CPU)) == (25, 0.25)
    # Counters of a new engine start at zero.
    assert Interval(first, _snapshot(11, tokens_total=30)).rate("tokens_total", CPU) == 30
    unknown = Interval(None, _snapshot(2, tokens_total=30))
    assert (unknown.rate("tokens_total", CPU), unknown.mean("gap", CPU)) == (None, None)
    assert unknown.now.value("nothing", CPU) is None


def test_devices_and_their_requests_are_shown(scripted: RunningServer) -> None:
    with scripted.stream("count 900; delay 0.02", device="scripted:1") as events:
        next(iter(events))
        name = events.response.headers["x-request-id"]
        shown = _top(scripted.url, "--interval", "1.5")
    assert shown.returncode == 0, shown.stderr
    rows = {cells[0]: cells for line in shown.stdout.splitlines() if (cells := line.replace("│", " ").split())}
    assert rows["scripted:0"][1:4] == ["ready", "0/16", "0"]
    assert rows["scripted:1"][1:4] == ["ready", "1/16", "0"]
    assert float(rows["scripted:1"][6]) > 0
    assert rows[name][1:3] == ["scripted:1", "decode"]


def _shown(width: int | None, *models: str, key_name: str | None = None) -> list[str]:
    """The table of a server with these models, each on two devices and with one request."""
    status = {"state": "ready"}
    health = {"version": "1", "models": {name: {"devices": {"cpu": status, "cuda:0": status}} for name in models}}
    figures = {"phase": "decode", "age": 1.0, "prompt_tokens": 5, "cached_tokens": 4, "output_tokens": 3}
    requests = [
        {"id": f"req-{'0' * 24}", "unique_id": name, "device": "cpu", "model": name, "key_name": key_name, **figures}
        for name in models
    ]
    samples = {("num_slots", ModelDevice(name, "cpu")): float(number) for number, name in enumerate(models, 16)}
    out = io.StringIO()
    console = Console(file=out, width=width or 200, force_terminal=width is not None, color_system=None)
    console.print(view(Interval(None, Snapshot(1, health, samples, requests)), width))
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 80, 200])
def test_terminal_rows_name_the_model_and_fit_the_width(width: int) -> None:
    lines = _shown(width, "phi", "a-model-whose-name-is-longer-than-others")
    rows = [line.split() for line in lines if line.startswith("cpu")]
    assert [row[1][:9] for row in rows] == ["phi", "a-model-w"]
    assert [row[3] for row in rows] == ["–/16", "–/17"]
    assert any(line.startswith("req-00000") and " phi " in line and " decode " in line for line in lines)
    assert max(map(len, lines)) <= width
    assert any("q quits" in line for line in lines)


def test_wide_terminal_has_whole_ids_and_titles_without_a_legend() -> None:
    shown = "\n".join(_shown(160, "phi"))
    assert [text in shown for text in (f"req-{'0' * 24}", "waiting", "hits: of prompts")] == [True, True, False]
    # Plain output names models only if there are several.
    assert ["phi" in "\n".join(_shown(None, *names)) for names in (["phi"], ["phi", "qwen"])] == [False, True]


@pytest.mark.parametrize(("key_name", "shown"), [("alice", True), (None, False)])
def test_requests_name_their_keys_where_they_have_some(key_name: str | None, shown: bool) -> None:
    lines = _shown(120, "phi", key_name=key_name)
    assert any("key" in line.split() for line in lines) is shown
    assert any(" alice " in line for line in lines) is shown


def test_requests_are_sorted_by_key_or_another_order_and_chosen_by_place() -> None:
    names = ["bob", None, "alice"]
    requests = [{"unique_id": str(name), "key_name": name} for name in names]
    choice = Choice(order=[field for field, _, _ in ORDERS].index("key_name"))
    assert [each["key_name"] for each in choice.sorted(requests)] == [None, "alice", "bob"]
    two = [{"unique_id": "a", "age": 1, "output_tokens": 9}, {"unique_id": "b", "age": 3, "output_tokens": 2}]
    choice = Choice()
    choice.move(two, 1)
    assert choice.request == "b"
    choice.next_order()
    assert [each["unique_id"] for each in choice.sorted(two)] == ["a", "b"]
    for _ in range(2):
        choice.move(two, -1)
        assert choice.request == "a"


def test_each_order_follows_another_and_the_first_the_last() -> None:
    choice, orders = Choice(), []
    for _ in range(len(ORDERS) + 1):
        orders.append(choice.order)
        choice.next_order()
    assert orders == [*range(len(ORDERS)), 0]


def test_chosen_request_is_cancelled_after_a_confirmation(scripted: RunningServer) -> None:
    with scripted.stream("count 900; delay 0.02") as events, _terminal(scripted.url) as (_, ours):
        next(iter(events))
        assert _read_until(ours, "1 request,")
        os.write(ours, b"\x1b[B")
        os.write(ours, b"c")
        assert _read_until(ours, "? (y/n)")
        os.write(ours, b"y")
        assert _read_until(ours, "is cancelled")
        assert last_event(iter(events))["finish_reason"] == "cancelled"


def test_top_without_the_admin_key_shows_what_is_public(own_folder: Path) -> None:
    settings = {"GENAI_API_KEYS": "a-key-of-sixteen-characters"}
    with run_here(own_folder, "--device", "scripted", settings=settings) as server:
        shown = _top(server.url, "--once", "--interval", "0.1", "--api-key", "a-key-of-sixteen-characters")
        refused = _top(server.url, "--once", "--interval", "0.1")
    assert shown.returncode == 0, shown.stderr
    assert "requests are not shown: 403: " in shown.stdout
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "an API key is required" in refused.stderr


def test_unreachable_server_or_invalid_interval_is_refused_in_one_line() -> None:
    shown = _top(f"http://127.0.0.1:{free_port()}")
    assert (shown.returncode, len(shown.stderr.splitlines())) == (1, 1)
    assert "no server at http://127.0.0.1:" in shown.stderr
    assert "--interval: soon is not between 0.1 and 3600" in _top("--interval", "soon").stderr


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([b"SSH-2.0-OpenSSH_9.2\r\n"], "should this be https"),
        ([b"HTTP/1.0 200 OK\r\ncontent-length: 99\r\n\r\n{"], "closed the connection"),
        ([b"HTTP/1.0 200 OK\r\n\r\n[]"], "is not a genai-server"),
        ([b'HTTP/1.0 200 OK\r\n\r\n{"status": "ok"}'], "is not a genai-server"),
        ([b'HTTP/1.0 200 OK\r\n\r\n{"devices": {}}', b"HTTP/1.0 200 OK\r\n\r\n<p>"], "/metrics has no metrics"),
    ],
)
def test_other_kind_of_server_is_refused(answers: list[bytes], message: str) -> None:
    def answer() -> None:
        for each in answers:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(each)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(ServerUnusable, match=message):
            Poller(f"http://127.0.0.1:{listener.getsockname()[1]}", None).poll()
        thread.join(90)


@pytest.mark.parametrize("end", ["signal", "q", "\x03"])
def test_terminal_is_refreshed_until_q_or_ctrl_c(scripted: RunningServer, end: str) -> None:
    with _terminal(scripted.url) as (process, ours):
        assert _read_until(ours, "0 requests")
        with scripted.stream("count 900; delay 0.02") as events:
            next(iter(events))
            assert _read_until(ours, "1 request")
        if end == "signal":
            process.send_signal(signal.SIGINT)
        else:
            os.write(ours, end.encode())
        assert process.wait(90) == 0


@contextmanager
def _terminal(url: str) -> Iterator[tuple["ForkedProcess | subprocess.Popen[bytes]", int]]:
    """`top` in a terminal, and the terminal's other side."""
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    environment = clean_environment(TERM="xterm")
    process = start_command("top", url, "--interval", "0.2", environment=environment, files=[theirs] * 3)
    os.close(theirs)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def _read_until(terminal: int, text: str) -> bool:
    """Whether the text appears within a time limit."""
    seen, end = "", time.monotonic() + PATIENCE
    while text not in seen and time.monotonic() < end:
        if select.select([terminal], [], [], 0.2)[0]:
            seen += os.read(terminal, 65536).decode(errors="replace")
    return text in seen
