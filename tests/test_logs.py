"""The log: levels, formats, and what it contains of exceptions."""

import asyncio
import contextlib
import json
import logging
import os
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TextIO

import httpx
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from genai_server.errors import MalformedForm
from genai_server.http.upload import FormParser
from genai_server.logs import RedactingFormatter, configure_logging, written_in_thread
from tests.running_server import run_server, wait_until

pytestmark = pytest.mark.usefixtures("untouched_logging")


@pytest.fixture
def untouched_logging() -> Iterator[None]:
    """Restore the logging of the process."""
    loggers = [logging.getLogger(name) for name in ("", "asyncio", "python_multipart", "httpx2")]
    levels, handlers = [logger.level for logger in loggers], loggers[0].handlers[:]
    loggers[0].handlers.clear()
    yield
    loggers[0].handlers[:] = handlers
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


def test_lines_in_a_terminal_are_short(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    configure_logging("info")
    logging.getLogger("genai_server.anything").warning("low on %s", "memory")
    logging.getLogger("uvicorn.error").info("Waiting for application startup.")
    logging.getLogger("httpx2").info("HTTP Request: GET")
    (line,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d WARNING low on memory", line)


def test_asyncio_stays_quiet_at_debug_and_is_never_louder_than_the_rest() -> None:
    for level, number, is_heard in (("debug", logging.DEBUG, True), ("error", logging.WARNING, False)):
        configure_logging(level)
        assert logging.getLogger("genai_server").isEnabledFor(number) is is_heard
        assert not logging.getLogger("asyncio").isEnabledFor(number)


def test_a_wrong_form_is_not_logged(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("debug")
    with pytest.raises(MalformedForm):
        FormParser({"content-type": "multipart/form-data; boundary=a"}).feed(b"--a\r\nno header\r\n")
    assert capsys.readouterr().err == ""


def logged(error: BaseException) -> str:
    try:
        raise error
    except BaseException as caught:
        return RedactingFormatter().formatException((type(caught), caught, caught.__traceback__))


def test_exception_is_logged_by_frames_and_type_only() -> None:
    lines = logged(KeyError("swordfish" * 2)).splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "test_logs.py" in lines[1]
    assert lines[2].strip() == "raise error"
    assert lines[-1] == "builtins.KeyError"
    assert "swordfish" not in "".join(lines)


def test_causes_of_an_exception_are_logged_by_type_only() -> None:
    try:
        try:
            int("sword" + "fish")
        except ValueError as error:
            raise ExceptionGroup("sword" + "fish", [error, TypeError("sword" + "fish")]) from error
    except ExceptionGroup as error:
        text = logged(error)
    assert text.index("builtins.ValueError") < text.index("which led to") < text.index("builtins.ExceptionGroup")
    assert "  | builtins.TypeError" in text
    assert "swordfish" not in text


def test_exceptions_in_a_cycle_are_logged_once() -> None:
    first, second = ValueError(), TypeError()
    first.__cause__, second.__cause__ = second, first
    assert logged(first).count("builtins.TypeError") == 1


def test_unawaited_task_fails_without_its_message_in_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info")

    async def fail() -> None:
        raise ValueError("sword" + "fish")

    async def forget() -> None:
        task = asyncio.create_task(fail())
        await asyncio.wait([task])
        asyncio.get_running_loop().call_exception_handler(
            {"message": "unawaited", "exception": task.exception(), "task": task}
        )

    asyncio.run(forget())
    printed = capsys.readouterr().err
    assert "ERROR asyncio: unawaited\n" in printed
    assert "builtins.ValueError" in printed
    assert "swordfish" not in printed


async def failing(scope: Scope, receive: Receive, send: Send) -> None:
    raise LookupError("sword" + "fish")


def test_internal_error_of_a_request_is_logged_without_message(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("debug")
    server = uvicorn.Server(uvicorn.Config(failing, lifespan="off", log_config=None))
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        assert httpx.get(f"http://127.0.0.1:{listener.getsockname()[1]}/", timeout=90).status_code == 500
    finally:
        server.should_exit = True
        thread.join(90)
    printed = capsys.readouterr().err
    assert "ERROR uvicorn: Exception in ASGI application" in printed
    assert "INFO uvicorn: Started server process" in printed
    assert "uvicorn.error" not in printed
    assert "in failing" in printed
    assert "builtins.LookupError" in printed
    assert "swordfish" not in printed


def _formatted(form: str, message: str, capsys: pytest.CaptureFixture[str], **fields: object) -> str:
    configure_logging("info", form)
    logging.getLogger("genai_server.x").info(message, extra={"fields": fields} if fields else None)
    return capsys.readouterr().err


def test_json_log_has_one_object_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    text = _formatted("json", "two\nlines", capsys, id="r1", seconds=0.5)
    assert text.count("\n") == 1
    line = json.loads(text)
    assert datetime.fromisoformat(line.pop("time")).tzinfo is not None
    assert line == {"level": "info", "logger": "genai_server.x", "message": "two\nlines", "id": "r1", "seconds": 0.5}


def test_json_log_keeps_an_exception_in_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "json")
    try:
        raise ValueError("wrong")
    except ValueError:
        logging.getLogger("genai_server.x").exception("it went")
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["exception"].endswith("builtins.ValueError")


def test_text_log_has_fields_after_the_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert _formatted("text", "done", capsys, id="r1", n=2).endswith("INFO genai_server.x: done id=r1 n=2\n")


# a standard error that is blocked


@pytest.fixture
def pipe() -> Iterator[tuple[int, TextIO]]:
    """A pipe that nobody reads, and the stream that writes to it."""
    reads, writes = os.pipe()
    with os.fdopen(writes, "w") as stream, os.fdopen(reads, "rb"):
        yield reads, stream


def _fill(descriptor: int) -> int:
    """Write to a pipe as much as it holds; returns the number of bytes."""
    os.set_blocking(descriptor, False)
    num_bytes = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            num_bytes += os.write(descriptor, b"." * 512)
    os.set_blocking(descriptor, True)
    return num_bytes


def _within(work: Callable[[], object]) -> None:
    """Do something that must not block."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(90)
    assert not thread.is_alive()


def _read(descriptor: int, least: int) -> bytes:
    """Read at least this many bytes from a pipe."""
    found = b""
    while len(found) < least:
        found += os.read(descriptor, 1 << 16)
    return found


@pytest.mark.skipif(sys.platform == "win32", reason="pipes always block there")
def test_lines_that_a_blocked_standard_error_drops_are_counted(
    pipe: tuple[int, TextIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("genai_server.logs._MAX_WAITING", 3)
    monkeypatch.setattr("genai_server.logs._END_SECONDS", 20.0)
    reads, stream = pipe
    monkeypatch.setattr("sys.stderr", stream)
    configure_logging("info")
    log = logging.getLogger("genai_server.anything")
    filled = _fill(stream.fileno())

    def log_lines(*words: str) -> None:
        for word in words:
            log.info("line %s", word)

    with written_in_thread():
        lines = logging.getLogger().handlers[0].stream  # type: ignore[attr-defined]
        _within(lambda: log_lines("first"))
        wait_until(lambda: lines._waiting == [])
        _within(lambda: log_lines(*"abcdefg"))
        _read(reads, filled)
        wait_until(lambda: lines._waiting == [])
        _within(lambda: log_lines("last"))
    stream.flush()
    os.set_blocking(reads, False)
    written = os.read(reads, 1 << 16).decode().splitlines()
    assert [line.rpartition(": ")[2] for line in written] == [
        "line first",
        "line a",
        "line b",
        "line c",
        "standard error was blocked; 4 lines of the log were dropped",
        "line last",
    ]
    assert logging.getLogger().handlers[0].stream is stream  # type: ignore[attr-defined]


def test_several_apps_of_one_process_end_in_any_order(
    pipe: tuple[int, TextIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, stream = pipe
    monkeypatch.setattr("genai_server.logs._END_SECONDS", 20.0)
    monkeypatch.setattr("sys.stderr", stream)
    configure_logging("info")
    log = logging.getLogger("genai_server.anything")
    first, second = written_in_thread(), written_in_thread()
    first.__enter__()
    second.__enter__()
    log.info("of both")
    first.__exit__(None, None, None)
    log.info("of the second")
    second.__exit__(None, None, None)
    log.info("of none")
    stream.flush()
    written = os.read(reads, 1 << 16).decode().splitlines()
    assert [line.rpartition(": ")[2] for line in written] == ["of both", "of the second", "of none"]


@pytest.mark.skipif(sys.platform == "win32", reason="pipes always block there")
def test_a_blocked_standard_error_hardly_delays_the_end(
    pipe: tuple[int, TextIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("genai_server.logs._END_SECONDS", 0.01)
    _, stream = pipe
    monkeypatch.setattr("sys.stderr", stream)
    configure_logging("info")
    _fill(stream.fileno())

    def log_one() -> None:
        with written_in_thread():
            logging.getLogger("genai_server.anything").info("line")

    _within(log_one)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there are no named pipes")
def test_a_server_answers_while_nobody_reads_its_log(own_folder: Path) -> None:
    fifo = own_folder / "log"
    os.mkfifo(fifo)
    reads = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    redirect = f"import os, sys; os.dup2(os.open({str(fifo)!r}, os.O_WRONLY), 2); "
    starts = redirect + "os.execv(sys.executable, [sys.executable, '-m', 'genai_server', 'serve', *sys.argv[1:]])"
    program = (sys.executable, "-c", starts)
    with run_server(own_folder, "--device", "scripted", program=program) as server:
        with contextlib.suppress(BlockingIOError):
            while os.read(reads, 1 << 16):
                pass
        writes = os.open(fifo, os.O_WRONLY)
        _fill(writes)
        os.close(writes)
        with server.begun("delay 0.01; count 30") as rest:
            for _ in range(5):
                assert server.chat("say hi").status_code == 200
            assert "decode" in list(rest)[-1]
        written = ""

        def is_logged() -> bool:
            nonlocal written
            with contextlib.suppress(BlockingIOError):
                written += os.read(reads, 1 << 16).decode()
            return written.count("path=/v1/chat ") == 5

        wait_until(is_logged)
        os.set_blocking(reads, True)
        threading.Thread(target=lambda: [None for _ in iter(lambda: os.read(reads, 1 << 16), b"")], daemon=True).start()
