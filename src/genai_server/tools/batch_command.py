"""`genai-server batch INPUT OUTPUT`: answer all requests in a file, with a running server or one of its own.

INPUT has a request in each line, and OUTPUT gets a result in each line, both in the format of OpenAI's batches.
Requests that fail are in a file next to OUTPUT, such as results.errors.jsonl for results.jsonl. If OUTPUT has results
already, the command continues where it stopped, and sends failed requests again.

With --url, the requests are sent to this server. Without it, a --model that is a directory, or the name of one in
GENAI_MODELS_DIR, gets a server on a free port, which is stopped afterwards. With neither, the command uses the server
at HOST and PORT if one is running, or else starts one for the model in GENAI_MODEL_DIR. A server that the command has
started answers for any model that a line names.
"""

import argparse
import http.client
import itertools
import secrets
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from genai_server.batch_files import (
    BatchLine,
    InputCheck,
    LineReader,
    ResultFile,
    digest,
    error_line,
    first_invalid_line,
    response_line,
)
from genai_server.cli.parser import path_of, positive
from genai_server.cli.screen import print_to_stderr
from genai_server.errors import ChatFailed
from genai_server.tools.server_answers import checked_url, unanswered
from genai_server.tools.terminal_chat.chat_client import ChatClient
from genai_server.tools.terminal_chat.chat_command import connected, exit_cleanly_on_signals

# Bytes of a request with images.
_MAX_BODY = 128 * 1024 * 1024
# Wrong lines that are shown.
_MAX_SHOWN = 10
# Seconds for one request, which may wait for others.
_PATIENCE = 86_400
# Statuses of a server that is busy, and seconds until the next attempt, unless the response says more.
_BUSY_STATUSES = (429, 503)
_PAUSE = 1.0
# Seconds for which a server may be unreachable.
_MAX_UNREACHABLE_SECONDS = 120.0
_OWN_OPTIONS = ("--request-timeout", str(_PATIENCE))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments and options of `genai-server batch` to `parser`, and set `run` as the function that executes
    the command.
    """
    parser.add_argument("input", metavar="INPUT", help="file of requests")
    parser.add_argument("output", metavar="OUTPUT", help="file for the results; may have some")
    parser.add_argument("--url", metavar="URL", help="a running server")
    parser.add_argument("--model", metavar="NAME|DIR", help="model directory, or its name, to start a server on")
    parser.add_argument("--api-key", metavar="KEY", help="an API key of the server")
    parser.add_argument(
        "--concurrency", type=positive, default=16, metavar="N", help="requests at once (default: %(default)s)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Execute `genai-server batch`: answer all requests of the input file that have no result yet.

    `arguments` are the parsed command line. Returns the exit status: 0 if all requests succeeded, 1 if some failed, 130
    after Ctrl-C. Raises ConfigurationError for wrong settings, and ChatFailed if a file cannot be used or the server
    cannot be reached.
    """
    exit_cleanly_on_signals()
    source, target = path_of(arguments.input), path_of(arguments.output)
    errors = target.with_name(f"{target.stem}.errors{target.suffix}")
    url = checked_url(arguments.url) if arguments.url else None
    num_requests = _checked(source)
    _require_results(target, errors)
    try:
        errors.unlink(missing_ok=True)
        succeeded, failed = ResultFile(target, mode=0o666), ResultFile(errors, mode=0o666)
        done = {digest(custom_id) for custom_id, _ in succeeded.recovered()}
        with closing(succeeded), closing(failed):
            num_failed = 0
            if len(done) < num_requests:
                with connected(url or arguments.model, arguments.api_key, print_to_stderr, _OWN_OPTIONS) as client:
                    client.require_listening()
                    batch = _Batch(client, succeeded, failed, arguments.concurrency)
                    num_failed = batch.run(source, done, num_requests)
        if not num_failed:
            errors.unlink(missing_ok=True)
    except OSError as error:
        raise ChatFailed(f"{error.filename or target} cannot be read or written: {error.strerror}") from None
    except KeyboardInterrupt:
        print_to_stderr("stopped; the same command continues")
        return 130
    print_to_stderr(f"{num_requests - num_failed} of {num_requests} requests succeeded: {target}")
    if num_failed:
        print_to_stderr(f"{num_failed} failed: {errors}")
    return 1 if num_failed else 0


def _checked(source: Path) -> int:
    """Check that every line of the batch file `source` is a valid request, and return the number of requests.

    Raises ChatFailed, with the first invalid lines, if a line is invalid or the file cannot be read.
    """
    check = InputCheck(sys.maxsize, lambda model: None)
    try:
        with closing(LineReader(source, _MAX_BODY)) as reader:
            for part in reader.parts():
                check.add(part)
                if check.is_decided:
                    break
    except OSError as error:
        raise ChatFailed(f"{source} cannot be read: {error.strerror}") from None
    if errors := check.errors():
        shown = [
            f"{source}: {error.message}" if error.number is None else f"{source}:{error.number}: {error.message}"
            for error in errors[:_MAX_SHOWN]
        ]
        raise ChatFailed("\n".join([*shown, *(["…"] if len(errors) > _MAX_SHOWN else [])]))
    return check.num_requests


def _require_results(*targets: Path) -> None:
    """Raise ChatFailed if one of the files `targets` exists and contains anything but results of a batch. This protects
    other files from being appended to or replaced.
    """
    for target in targets:
        try:
            number = first_invalid_line(target)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ChatFailed(f"{target} cannot be read: {error.strerror}") from None
        if number is not None:
            raise ChatFailed(f"{target} cannot be continued: line {number} is not the result of a request")


@dataclass(frozen=True)
class _Result:
    line: bytes
    succeeded: bool


class _Batch:
    """Sends the requests of a batch that have no result yet to one server, and appends each result to a file.

    `run` of the command creates one object for each execution. `succeeded` and `failed` are the files for the results
    of successful and of failed requests, and `concurrency` is the number of requests that are sent at the same time,
    each by a thread of its own.
    """

    def __init__(self, client: ChatClient, succeeded: ResultFile, failed: ResultFile, concurrency: int) -> None:
        self._client = client
        self._files = {True: succeeded, False: failed}
        self._concurrency = concurrency
        # Connections that no thread uses.
        self._idle: deque[http.client.HTTPConnection] = deque()
        # Those on which a thread waits.
        self._busy: set[http.client.HTTPConnection] = set()
        # Set when no more requests may be sent.
        self._is_over = threading.Event()

    def run(self, source: Path, done: set[bytes], num_requests: int) -> int:
        """Send the requests in the file `source` that have no result yet, and write each result to its file as it
        arrives. Returns how many of these requests failed.

        `done` are the digests of the custom ids of requests that already have a result, and `num_requests` is the
        number of all requests in the file, for the progress bar. Raises ChatFailed if the server becomes unreachable,
        and OSError if a file cannot be read or written.
        """
        num_failed = 0
        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        with bar, ThreadPoolExecutor(self._concurrency) as threads:
            task = bar.add_task("requests", total=num_requests, completed=len(done))
            waiting = (line for line in _lines(source) if digest(line.custom_id) not in done)
            running: set[Future[_Result | None]] = set()
            try:
                while True:
                    num_free = self._concurrency - len(running)
                    running |= {threads.submit(self._answer, line) for line in itertools.islice(waiting, num_free)}
                    if not running:
                        return num_failed
                    ended, running = wait(running, return_when=FIRST_COMPLETED)
                    for result in filter(None, (future.result() for future in ended)):
                        self._files[result.succeeded].append(result.line)
                        num_failed += not result.succeeded
                        bar.advance(task)
            finally:
                self._is_over.set()
                for future in running:
                    future.cancel()
                for connection in list(self._busy):
                    _interrupt(connection)
                threads.shutdown()
                for connection in self._idle:
                    connection.close()

    def _answer(self, line: BatchLine) -> _Result | None:
        """Send the request in `line` to the server and return its result, which may be a failure; None if the command
        ends before the server has answered.

        While the server says that it is busy, the request is sent again after a pause. Raises ChatFailed if the server
        has been unreachable for too long.
        """
        id, custom_id, lost = f"batch_req_{secrets.token_hex(12)}", line.custom_id, time.monotonic()
        while not self._is_over.is_set():
            pause, connection = _PAUSE, self._idle_connection()
            self._busy.add(connection)
            try:
                response = self._client.exchange(connection, "POST", line.url, line.body)
                body = response.read()
            except (OSError, http.client.HTTPException) as error:
                self._busy.discard(connection)
                connection.close()
                if time.monotonic() - lost > _MAX_UNREACHABLE_SECONDS:
                    why = unanswered(self._client.url, error)
                    raise ChatFailed(f"{why}; the same command continues") from None
            else:
                self._busy.discard(connection)
                self._idle.append(connection)
                lost = time.monotonic()
                if response.status not in _BUSY_STATUSES:
                    request_id = response.getheader("x-request-id", "")
                    try:
                        text = response_line(id, custom_id, response.status, request_id, body)
                    except ValueError:
                        return _Result(error_line(id, custom_id, "server_error", "the response is not JSON"), False)
                    return _Result(text, response.status < 400)
                with suppress(ValueError):
                    pause = max(pause, float(response.getheader("retry-after", "")))
            self._is_over.wait(pause)
        return None

    def _idle_connection(self) -> http.client.HTTPConnection:
        try:
            return self._idle.pop()
        except IndexError:
            return self._client.connect(_PATIENCE)


def _interrupt(connection: http.client.HTTPConnection) -> None:
    """Shut down the socket of `connection`, so that a thread that waits there for a response stops waiting with an
    error.
    """
    if connection.sock is not None:
        with suppress(OSError):  # it has just been closed
            connection.sock.shutdown(socket.SHUT_RDWR)


def _lines(source: Path) -> Iterator[BatchLine]:
    """Yield the requests in the batch file `source`, one for each valid line. Invalid lines are skipped."""
    with closing(LineReader(source, _MAX_BODY)) as reader:
        for part in reader.parts():
            yield from (line for line in part if isinstance(line, BatchLine))
