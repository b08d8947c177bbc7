"""The log: what is heard at which level, and what is told of an exception."""

import asyncio
import json
import logging
import socket
import threading
from collections.abc import Iterator
from datetime import datetime

import httpx
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from genai_server.logs import DiscreetFormatter, configure_logging


@pytest.fixture
def untouched_logging() -> Iterator[None]:
    """Put the process's logging back as it was."""
    loggers = [logging.getLogger(name) for name in ("", "asyncio", "sse_starlette")]
    levels, handlers = [logger.level for logger in loggers], loggers[0].handlers[:]
    loggers[0].handlers.clear()
    yield
    loggers[0].handlers[:] = handlers
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.mark.usefixtures("untouched_logging")
def test_at_debug_the_noisy_libraries_stay_quiet() -> None:
    configure_logging("debug")
    assert logging.getLogger("genai_server").isEnabledFor(logging.DEBUG)
    assert not logging.getLogger("asyncio").isEnabledFor(logging.DEBUG)


@pytest.mark.usefixtures("untouched_logging")
def test_the_noisy_libraries_are_never_louder_than_the_rest() -> None:
    configure_logging("error")
    assert not logging.getLogger("sse_starlette").isEnabledFor(logging.WARNING)
    assert not logging.getLogger("genai_server").isEnabledFor(logging.WARNING)


def told(error: BaseException) -> str:
    try:
        raise error
    except BaseException as caught:
        return DiscreetFormatter().formatException((type(caught), caught, caught.__traceback__))


def test_an_exception_is_told_by_its_frames_and_type_without_its_message() -> None:
    lines = told(KeyError("swordfish" * 2)).splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "test_logs.py" in lines[1]
    assert lines[2].strip() == "raise error"
    assert lines[-1] == "builtins.KeyError"
    assert "swordfish" not in "".join(lines)


def test_what_led_to_an_exception_is_told_likewise() -> None:
    try:
        try:
            int("sword" + "fish")
        except ValueError as error:
            raise ExceptionGroup("sword" + "fish", [error, TypeError("sword" + "fish")]) from error
    except ExceptionGroup as error:
        text = told(error)
    assert text.index("builtins.ValueError") < text.index("which led to") < text.index("builtins.ExceptionGroup")
    assert "  | builtins.TypeError" in text
    assert "swordfish" not in text


def test_exceptions_in_a_circle_are_told_once() -> None:
    first, second = ValueError(), TypeError()
    first.__cause__, second.__cause__ = second, first
    assert told(first).count("builtins.TypeError") == 1


@pytest.mark.usefixtures("untouched_logging")
def test_a_task_that_nobody_waits_for_fails_without_its_message(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info")

    async def fail() -> None:
        raise ValueError("sword" + "fish")

    async def forget() -> None:
        task = asyncio.create_task(fail())
        await asyncio.wait([task])
        asyncio.get_running_loop().call_exception_handler(
            {"message": "nobody waits", "exception": task.exception(), "task": task}
        )

    asyncio.run(forget())
    told = capsys.readouterr().err
    assert "ERROR asyncio: nobody waits\n" in told
    assert "builtins.ValueError" in told
    assert "swordfish" not in told


async def failing(scope: Scope, receive: Receive, send: Send) -> None:
    raise LookupError("sword" + "fish")


@pytest.mark.usefixtures("untouched_logging")
def test_a_request_that_meets_an_internal_error_is_logged_without_the_message(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure_logging("debug")
    server = uvicorn.Server(uvicorn.Config(failing, lifespan="off", log_config=None))
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        assert httpx.get(f"http://127.0.0.1:{listener.getsockname()[1]}/").status_code == 500
    finally:
        server.should_exit = True
        thread.join(20)
    told = capsys.readouterr().err
    assert "ERROR uvicorn: Exception in ASGI application" in told
    assert "INFO uvicorn: Started server process" in told
    assert "uvicorn.error" not in told
    assert "in failing" in told
    assert "builtins.LookupError" in told
    assert "swordfish" not in told


def _formatted(form: str, message: str, capsys: pytest.CaptureFixture[str], **fields: object) -> str:
    configure_logging("info", form)
    logging.getLogger("genai_server.x").info(message, extra={"fields": fields} if fields else None)
    return capsys.readouterr().err


@pytest.mark.usefixtures("untouched_logging")
def test_as_json_each_record_is_one_object_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    text = _formatted("json", "two\nlines", capsys, id="r1", seconds=0.5)
    assert text.count("\n") == 1
    line = json.loads(text)
    assert datetime.fromisoformat(line.pop("time")).tzinfo is not None
    assert line == {
        "level": "info",
        "logger": "genai_server.x",
        "message": "two\nlines",
        "id": "r1",
        "seconds": 0.5,
    }


@pytest.mark.usefixtures("untouched_logging")
def test_as_json_an_exception_stays_in_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "json")
    try:
        raise ValueError("wrong")
    except ValueError:
        logging.getLogger("genai_server.x").exception("it went")
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["exception"].endswith("builtins.ValueError")


@pytest.mark.usefixtures("untouched_logging")
def test_as_text_fields_follow_the_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert _formatted("text", "done", capsys, id="r1", n=2).endswith("INFO genai_server.x: done id=r1 n=2\n")
