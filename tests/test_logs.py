"""The log: what is heard at which level."""

import logging
from collections.abc import Iterator

import pytest

from genai_server.logs import configure_logging


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
