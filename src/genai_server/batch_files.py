"""The files of batches, in OpenAI's format of one JSON object in each line. `LineReader` reads the requests from a file
of any length, and `InputCheck` checks them; `ResultFile` writes the results to a file that stays readable if its
process or the machine stops at any moment.

This module needs no HTTP, so that both the server and `genai-server batch` use it.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from genai_server.errors import GenaiServerError, quoted

# What the requests of a batch may be for.
ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings")
MAX_ID = 512
# Bytes of a line besides its body.
_AROUND = 4096
# A part of a file that is read at once, in bytes and lines: each is parsed without a pause.
_PART_BYTES = 256 * 1024
_PART_LINES = 256
# Fields that are not allowed in batches, because they make an endpoint answer in pieces, or later.
_NOT_IN_BATCHES = ("stream", "background")
# Errors that are reported of a batch. The rest of its input is not read.
MAX_ERRORS = 50

# How each line begins.
_BEGINNING = b'{"id":"batch_req_'


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One valid request of a batch: its line in the input file, the client's id, the endpoint, and the body as JSON.
    LineReader creates it.
    """

    # Counted from 1.
    number: int
    custom_id: str
    url: str
    # None if the body names no model.
    model: str | None
    # JSON.
    body: bytes


@dataclass(frozen=True, slots=True)
class LineError:
    """The reason why a line of a batch's input file is not a valid request. If `number` is None, the error is about the
    whole file.
    """

    number: int | None
    code: str
    message: str
    param: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the error as an object in OpenAI's format, an element of a batch's `errors`."""
        return {"code": self.code, "message": self.message, "param": self.param, "line": self.number}


def listed(errors: Iterable[LineError]) -> dict[str, Any]:
    """Return the errors of a batch's input as the value of the batch's field `errors`, in OpenAI's format."""
    return {"object": "list", "data": [error.to_json() for error in errors]}


class LineReader:
    """Reads the requests in the input file of a batch, several lines at a time. All methods block. The caller must
    close it.

    `max_body` is the maximum size of a request's body in bytes; the rest of a longer line is skipped. With an
    `endpoint`, all requests must be for that path; with None, each may be for any of ENDPOINTS. Raises OSError if the
    file cannot be read.
    """

    def __init__(self, path: Path, max_body: int, endpoint: str | None = None) -> None:
        self._file = path.open("rb")
        self._max_body = max_body
        self._endpoint = endpoint
        self._number = 0

    def parts(self) -> Iterator[list[BatchLine | LineError]]:
        """Iterate over all lines in lists of several lines, each a request or the error in its line. Blank lines are
        left out, so a list may be empty. Raises OSError.
        """
        while (part := self.read()) is not None:
            yield part

    def read(self) -> list[BatchLine | LineError] | None:
        """Return the next lines as a list, each a request or the error in its line; None at the end of the file. Blank
        lines are left out, so the list may be empty. Raises OSError.
        """
        lines: list[BatchLine | LineError] = []
        num_bytes = 0
        while num_bytes < _PART_BYTES and len(lines) < _PART_LINES:
            text = self._file.readline(self._max_body + _AROUND)
            if not text:
                return lines or None
            self._number += 1
            num_bytes += len(text)
            is_whole = text.endswith(b"\n") or len(text) < self._max_body + _AROUND
            if not is_whole:
                self._skip_line()
            if self._number == 1:
                text = text.removeprefix(b"\xef\xbb\xbf")  # written by some editors
            if not is_whole or text.strip():
                lines.append(self._parsed(text, is_whole=is_whole))
        return lines

    def close(self) -> None:
        """Close the input file."""
        self._file.close()

    def _skip_line(self) -> None:
        while (more := self._file.readline(_PART_BYTES)) and not more.endswith(b"\n"):
            pass

    def _parsed(self, text: bytes, *, is_whole: bool) -> BatchLine | LineError:
        try:
            if not is_whole:
                raise _InvalidLine("line_too_long", f"the line may have at most {self._max_body + _AROUND} bytes")
            return self._request(text)
        except _InvalidLine as error:
            return LineError(self._number, error.code, error.message, error.param)

    def _request(self, text: bytes) -> BatchLine:
        fields = _object(text, "the line", None)
        custom_id = _text(fields, "custom_id")
        if not 0 < len(custom_id) <= MAX_ID:
            raise _InvalidLine("invalid_custom_id", f"custom_id must have 1 to {MAX_ID} characters", "custom_id")
        if (method := _text(fields, "method")) != "POST":
            raise _InvalidLine("invalid_method", f"method must be POST, given {quoted(method)}", "method")
        url = _text(fields, "url")
        if url not in ((self._endpoint,) if self._endpoint else ENDPOINTS):
            allowed = f"{self._endpoint}, the batch's endpoint" if self._endpoint else " or ".join(ENDPOINTS)
            raise _InvalidLine("invalid_url", f"url must be {allowed}, given {quoted(url)}", "url")
        if "body" not in fields:
            raise _InvalidLine("missing_required_parameter", "body is required", "body")
        raw = bytes(fields["body"])
        if len(raw) > self._max_body:
            raise _InvalidLine(
                "body_too_large", f"body may have at most {self._max_body} bytes, given {len(raw)}", "body"
            )
        body = _object(raw, "body", "body")
        for name in _NOT_IN_BATCHES:
            if bytes(body.get(name, b"false")) not in (b"false", b"null"):
                raise _InvalidLine("unsupported_parameter", f"body.{name} must not be given in a batch", f"body.{name}")
        model = None if bytes(body.get("model", b"null")) == b"null" else _text(body, "model", "body.")
        return BatchLine(self._number, custom_id, url, model, raw)


class _InvalidLine(Exception):
    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param


def _object(text: bytes, what: str, param: str | None) -> dict[str, msgspec.Raw]:
    try:
        return msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError:
        code = "invalid_json_line" if param is None else "invalid_type"
        raise _InvalidLine(code, f"{what} must be a JSON object", param) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _InvalidLine("invalid_json_line", f"{what} is not JSON: {error}", param) from None


def _text(fields: Mapping[str, msgspec.Raw], name: str, prefix: str = "") -> str:
    if name not in fields:
        raise _InvalidLine("missing_required_parameter", f"{prefix}{name} is required", f"{prefix}{name}")
    try:
        return msgspec.json.decode(fields[name], type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise _InvalidLine("invalid_type", f"{prefix}{name} must be a string", f"{prefix}{name}") from None


def digest(custom_id: str) -> bytes:
    """Return a hash of a custom id, the client's id of a request. With its 16 bytes it takes less memory than
    the id.
    """
    return blake2b(custom_id.encode(errors="surrogatepass"), digest_size=16).digest()


def response_line(id: str, custom_id: str, status: int, request_id: str, body: bytes) -> bytes:
    """Return the line of a batch's result file for a request that has been answered. `id` identifies the line,
    `custom_id` is the client's id of the request, and `request_id` the server's. `status` and `body` are those of the
    HTTP response. Raises ValueError if the body is not JSON.
    """
    checked = msgspec.json.decode(body.decode(), type=msgspec.Raw)
    # Line feeds are only between values: in strings they have escapes.
    response = {
        "status_code": status,
        "request_id": request_id,
        "body": msgspec.Raw(bytes(checked).replace(b"\n", b" ")),
    }
    return _line(id, custom_id, response, None)


def error_line(id: str, custom_id: str, code: str, message: str) -> bytes:
    """Return the line of a batch's error file for a request that could not be answered. `id` identifies the line, and
    `custom_id` is the client's id of the request. `code` and `message` say what went wrong.
    """
    return _line(id, custom_id, None, {"code": code, "message": message})


def _line(id: str, custom_id: str, response: Any, error: Any) -> bytes:
    return msgspec.json.encode({"id": id, "custom_id": custom_id, "response": response, "error": error}) + b"\n"


class InputCheck:
    """Checks all lines of a batch's input together: for duplicate custom ids, for models that cannot be used, and for
    the number of requests. The caller passes the lines to `add` and then asks for the `errors`.

    `max_requests` is the maximum number of requests. `check_model` takes the name of a model (None for a request that
    names none), and raises a GenaiServerError if the model cannot be used.
    """

    def __init__(self, max_requests: int, check_model: Callable[[str | None], object]) -> None:
        self._errors: list[LineError] = []
        self._max_requests = max_requests
        self._check_model = check_model
        # Digests of the custom ids.
        self._ids: set[bytes] = set()
        # Models that can be used.
        self._models: set[str | None] = set()

    @property
    def num_requests(self) -> int:
        """Number of requests with different custom ids in the lines checked so far."""
        return len(self._ids)

    @property
    def is_decided(self) -> bool:
        """Whether the batch is certain to be refused, so that the remaining lines need not be checked: it has
        MAX_ERRORS errors or too many requests.
        """
        return len(self._errors) >= MAX_ERRORS or len(self._ids) > self._max_requests

    def add(self, lines: Sequence[BatchLine | LineError]) -> None:
        """Check the next lines of the input, and keep their errors for `errors`."""
        for line in lines:
            error = line if isinstance(line, LineError) else self._wrong(line)
            if error is not None:
                self._errors.append(error)

    def errors(self) -> list[LineError]:
        """Return the errors for which the batch is refused: those of single lines, at most MAX_ERRORS, or one about the
        number of requests. Empty if the input is valid. An input without requests is not valid.
        """
        if len(self._ids) > self._max_requests:
            message = f"a batch may have at most {self._max_requests} requests (GENAI_MAX_BATCH_REQUESTS)"
            return [LineError(None, "too_many_requests", message)]
        if not self._ids and not self._errors:
            return [LineError(None, "empty_file", "the input file has no requests")]
        return self._errors[:MAX_ERRORS]

    def _wrong(self, line: BatchLine) -> LineError | None:
        id = digest(line.custom_id)
        if id in self._ids:
            message = f"custom_id {quoted(line.custom_id)} is that of an earlier line"
            return LineError(line.number, "duplicate_custom_id", message, "custom_id")
        self._ids.add(id)
        if line.model not in self._models:
            try:
                self._check_model(line.model)
            except GenaiServerError as error:
                return LineError(line.number, error.code, error.message, "body.model")
            self._models.add(line.model)
        return None


class _Result(msgspec.Struct):
    custom_id: str
    response: msgspec.Raw


class ResultFile:
    """A file of a batch's results, to which lines are appended so that each line is there completely or not at all. All
    methods block. The caller must close it.

    A file that exists is continued: `recovered` must be iterated to its end before the first `append`. A new file is
    created with the permissions `mode`. Raises OSError if the file cannot be read or written.
    """

    def __init__(self, path: Path, mode: int = 0o600) -> None:
        self._path = path
        # Unbuffered, so that nothing is left to be written after an error.
        self._file = open(path, "ab", buffering=0, opener=lambda name, flags: os.open(name, flags, mode))  # noqa: SIM115
        # Bytes of complete lines.
        self.size = 0

    def recovered(self) -> Iterator[tuple[str, bytes]]:
        """Iterate over the complete lines that an earlier process has written to the file: the custom id of each and
        the line itself. At the end, an incomplete last line is removed from the file.
        """
        self.size = 0
        with self._path.open("rb") as file:
            for line in file:
                custom_id = _custom_id(line)
                if custom_id is None:
                    break  # the process ended, or the machine lost power, while it was written
                self.size += len(line)
                yield custom_id, line
        self._file.truncate(self.size)

    def append(self, lines: bytes) -> None:
        """Append complete lines, each with its line feed, and wait until they are on the disk. If this raises OSError,
        none of the lines is in the file.
        """
        remaining = memoryview(lines)
        try:
            while remaining:
                remaining = remaining[self._file.write(remaining) :]
            os.fsync(self._file.fileno())
        except OSError:
            self._file.truncate(self.size)
            raise
        self.size += len(lines)

    def close(self) -> None:
        """Close the file. Lines that were appended are on the disk already."""
        self._file.close()


def first_invalid_line(path: Path) -> int | None:
    """Return the number, from 1, of the first line of a file that is not the result of a request; None if all lines are
    results. An incomplete result at the end is ignored. Raises OSError.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            begins = not line.endswith(b"\n") and line.startswith(_BEGINNING[: len(line)])
            if _custom_id(line) is None and not begins:
                return number
    return None


def _custom_id(line: bytes) -> str | None:
    """Return the custom id of a line in a result file; None if the line is incomplete or not a result."""
    if not line.endswith(b"\n"):
        return None
    try:
        return msgspec.json.decode(line, type=_Result).custom_id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
