"""A plugin of pytest: runs tests in several processes that are forked from one that has imported and collected them.

    .venv/bin/python -m pytest --forks 5

Importing and collecting the tests takes longer than running most of them, and each process of pytest-xdist would do it
again. Where processes cannot be forked, the tests run in one. Importing a test module may not start a thread: forked
processes would lack it.
"""

import os
import pickle
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from itertools import groupby
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any, Literal, Never

import pytest
from _pytest.capture import FDCapture

# Tests of a module share servers. Without a limit, the last process would be busy with a large module for long.
_TESTS_AT_ONCE = 60
_WORD = 4


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the number of processes to pytest's options."""
    parser.addoption("--forks", type=int, default=1, help="processes that share the tests")


def pytest_runtestloop(session: pytest.Session) -> Literal[True] | None:
    """Run all tests of a session; None, which leaves them to pytest, for one process or if no test is to be run."""
    config = session.config
    if config.option.forks < 2 or config.option.collectonly or session.testsfailed or sys.platform != "linux":
        return None
    _check_threads()
    groups = list(_groups(session.items))
    queue = _Queue(len(groups))
    temporary: Path = config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    sys.stdout.flush()
    sys.stderr.flush()
    forks: dict[Connection, _Fork] = {}
    for number in range(config.option.forks):
        ours, theirs = Pipe(duplex=False)
        if (process := os.fork()) == 0:
            _run_in_fork(session, groups, queue, theirs, temporary / f"fork-{number}")
        theirs.close()
        forks[ours] = _Fork(session, process)
    while forks:
        for connection in wait(list(forks)):
            assert isinstance(connection, Connection)
            try:
                message = connection.recv_bytes()
            except EOFError:
                forks.pop(connection).end()
                connection.close()
            else:
                forks[connection].receive(*pickle.loads(message))
        if session.shouldfail:
            queue.clear()
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    return True


def _check_threads() -> None:
    if num_threads := len(os.listdir("/proc/self/task")) - 1:
        raise pytest.UsageError(f"the imported tests have started {num_threads} threads, which forks would lack")


def _groups(items: Sequence[pytest.Item]) -> Iterator[Sequence[pytest.Item]]:
    for _, of_module in groupby(items, lambda item: item.path):
        tests = list(of_module)
        for first in range(0, len(tests), _TESTS_AT_ONCE):
            yield tests[first : first + _TESTS_AT_ONCE]


class _Queue:
    """Numbers from 0 on, each of which one of several processes takes: those that a pipe holds, 16,384 at most."""

    def __init__(self, length: int) -> None:
        self._pipe, write_end = os.pipe()
        os.write(write_end, b"".join(number.to_bytes(_WORD, "little") for number in range(length)))
        os.close(write_end)

    def take(self) -> int | None:
        """The next number; None when none is left."""
        word = os.read(self._pipe, _WORD)
        return int.from_bytes(word, "little") if word else None

    def clear(self) -> None:
        """Leave none for any process."""
        while os.read(self._pipe, 1 << 16):
            pass


class _Fork:
    """A forked process as the first process sees it, to whose plugins it passes that process's reports on."""

    def __init__(self, session: pytest.Session, process: int) -> None:
        self._config = session.config
        self._session = session
        self._process = process
        self._running: tuple[str, tuple[str, int | None, str]] | None = None

    def receive(self, kind: str, content: Any) -> None:
        """Handle a message of `_Reports`."""
        hook = self._config.hook
        if kind == "start":
            self._running = content
            hook.pytest_runtest_logstart(nodeid=content[0], location=content[1])
        elif kind == "report":
            report = hook.pytest_report_from_serializable(config=self._config, data=content)
            hook.pytest_runtest_logreport(report=report)
        else:
            self._running = None
            hook.pytest_runtest_logfinish(nodeid=content[0], location=content[1])

    def end(self) -> None:
        """Wait for the process, and report a failure of the test that it ran if it ended before its tests did."""
        status = os.waitstatus_to_exitcode(os.waitpid(self._process, 0)[1])
        if status == 0:
            return
        nodeid, location = self._running or (f"process {self._process}", ("", None, ""))
        message = f"the process of the test ended with status {status}"
        self._config.hook.pytest_runtest_logreport(
            report=pytest.TestReport(nodeid, location, {}, "failed", message, "call")
        )


class _Reports:
    """The plugin of a forked process that sends its reports to the first process."""

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self._config = config
        self._connection = connection

    def pytest_runtest_logstart(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self._send("start", (nodeid, location))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._send("report", self._config.hook.pytest_report_to_serializable(config=self._config, report=report))

    def pytest_runtest_logfinish(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self._send("finish", (nodeid, location))

    def _send(self, kind: str, content: object) -> None:
        self._connection.send_bytes(pickle.dumps((kind, content)))


class _SilentTerminal:
    """In place of pytest's terminal reporter: prints no report, and has the terminal for the stacks of hung tests."""

    def __init__(self, config: pytest.Config) -> None:
        self._tw = config.get_terminal_writer()


def _run_in_fork(
    session: pytest.Session,
    groups: Sequence[Sequence[pytest.Item]],
    queue: _Queue,
    connection: Connection,
    temporary: Path,
) -> Never:
    """Run groups of tests until none is left, and end this process: with status 1 where pytest itself failed."""
    status = 1
    try:
        plugins = session.config.pluginmanager
        _capture_apart(plugins.getplugin("capturemanager"))
        terminal = _SilentTerminal(session.config)
        plugins.unregister(name="terminalreporter")
        plugins.register(terminal, "terminalreporter")
        plugins.register(_Reports(session.config, connection))
        temporary.mkdir()
        session.config._tmp_path_factory._basetemp = temporary  # type: ignore[attr-defined]
        tests = _taken(groups, queue)
        item = next(tests, None)
        while item is not None:
            following = next(tests, None)
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            item = following
        status = 0
    except BaseException:
        sys.__stderr__.write(traceback.format_exc())  # type: ignore[union-attr]
    finally:
        # Not the interpreter's own end: it would visit all that was imported before the fork, and so copy its memory.
        os._exit(status)


def _capture_apart(manager: Any) -> None:
    """Have pytest's capturing write what tests print to files of this process, instead of those that all forked
    processes share.

    The streams stay the same objects, because imported modules have them as the defaults of arguments.
    """
    for capture in (manager._global_capturing.out, manager._global_capturing.err):
        if isinstance(capture, FDCapture):
            with tempfile.TemporaryFile() as file:
                os.dup2(file.fileno(), capture.tmpfile.fileno())


def _taken(groups: Sequence[Sequence[pytest.Item]], queue: _Queue) -> Iterator[pytest.Item]:
    while (number := queue.take()) is not None:
        yield from groups[number]
