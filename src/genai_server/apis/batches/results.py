"""Writes the results of a running batch to two files, one for requests that succeeded and one for requests that failed,
and adds up their token counts. `Results` does this; it also recovers the results that an earlier process has written.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from genai_server.batch_files import ResultFile, digest
from genai_server.http.json_response import JsonObject

log = logging.getLogger(__name__)

# Seconds between two attempts to write to a full disk.
_PAUSE = 5.0


class _Usage(msgspec.Struct):
    """The field `usage` of a response body in a result file. It is the union of the fields in which the endpoints that
    batches can use report token counts.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: dict[str, int | None] | None = None
    completion_tokens_details: dict[str, int | None] | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    input_tokens_details: dict[str, int | None] | None = None
    output_tokens_details: dict[str, int | None] | None = None


class _Body(msgspec.Struct):
    usage: _Usage | None = None


class _Response(msgspec.Struct):
    body: _Body | None = None


class _Line(msgspec.Struct):
    response: _Response | None = None


@dataclass
class _Tokens:
    """The sums of the token counts of all results of a batch: prompt, cached, output and reasoning tokens."""

    prompt: int = 0
    cached: int = 0
    output: int = 0
    reasoning: int = 0

    def add(self, line: bytes) -> None:
        """Add the token counts of one result to the sums. `line` is the result's line in a result file. A result
        without token counts adds nothing.
        """
        try:
            response = msgspec.json.decode(line, type=_Line).response
        except msgspec.DecodeError:
            return
        if response is None or response.body is None or (usage := response.body.usage) is None:
            return
        self.prompt += usage.prompt_tokens + usage.input_tokens
        self.output += usage.completion_tokens + usage.output_tokens
        self.cached += _part(usage.prompt_tokens_details or usage.input_tokens_details, "cached_tokens")
        self.reasoning += _part(usage.completion_tokens_details or usage.output_tokens_details, "reasoning_tokens")

    def to_json(self) -> JsonObject:
        """Return the sums as the object `usage` in the format of OpenAI's batches."""
        return {
            "input_tokens": self.prompt,
            "input_tokens_details": {"cached_tokens": self.cached},
            "output_tokens": self.output,
            "output_tokens_details": {"reasoning_tokens": self.reasoning},
            "total_tokens": self.prompt + self.output,
        }


def _part(details: Mapping[str, int | None] | None, name: str) -> int:
    return (details or {}).get(name) or 0


@dataclass
class _File:
    results: ResultFile
    num_lines: int = 0
    # Lines that are not written yet, with their custom ids' digests and what tells that they are.
    waiting: list[tuple[bytes, bytes, "asyncio.Future[None]"]] = field(default_factory=list)


class Results:
    """Writes the results of one batch to its two files, one for requests that succeeded and one for those that failed,
    and knows which requests have a result. It is created by `open`, and whoever opens it must close it. It may be used
    in the event loop only.
    """

    def __init__(self, succeeded: ResultFile, failed: ResultFile) -> None:
        self._files = (_File(succeeded), _File(failed))
        # Digests of the custom ids in the files.
        self._done: set[bytes] = set()
        self._tokens = _Tokens()
        self._wake = asyncio.Event()
        # The latest write in a thread.
        self._appending: asyncio.Future[None] | None = None
        self._writer = asyncio.ensure_future(self._write())

    @classmethod
    async def open(cls, succeeded: Path, failed: Path) -> "Results":
        """Open the file `succeeded` for results of requests that succeeded and the file `failed` for results of
        requests that failed, and read the results that an earlier process has written to them. Returns the open
        `Results`. Raises OSError.
        """
        results = cls(*await asyncio.to_thread(lambda: (ResultFile(succeeded), ResultFile(failed))))
        try:
            for file in results._files:
                await asyncio.to_thread(results._recover, file)
        except BaseException:
            await results.close()
            raise
        return results

    @property
    def counts(self) -> tuple[int, int]:
        """The number of requests that have succeeded, and the number of requests that have failed."""
        succeeded, failed = self._files
        return succeeded.num_lines, failed.num_lines

    @property
    def sizes(self) -> tuple[int, int]:
        """The sizes in bytes of the file for succeeded requests and of the file for failed requests."""
        succeeded, failed = self._files
        return succeeded.results.size, failed.results.size

    @property
    def usage(self) -> JsonObject:
        """The token counts of all results together, as the object `usage` in the format of OpenAI's batches."""
        return self._tokens.to_json()

    def has(self, custom_id: str) -> bool:
        """Return whether the request with this custom id, the id that the client has given to it in the input file, has
        a result.
        """
        return digest(custom_id) in self._done

    async def add(self, lines: Sequence[tuple[str, bytes]], *, succeeded: bool) -> None:
        """Write results to the file for succeeded or for failed requests, and wait until they are on the disk. Each
        result is a pair of the request's custom id (the id that the client has given to it) and the line to write. If
        the disk is full, this waits until there is room.
        """
        file = self._files[not succeeded]
        done = [asyncio.get_running_loop().create_future() for _ in lines]
        file.waiting += [(digest(id), line, written) for (id, line), written in zip(lines, done, strict=True)]
        self._wake.set()
        if done:
            await asyncio.wait(done)

    async def close(self) -> None:
        """Close both files. Results that are still waiting to be written are lost."""
        self._writer.cancel()
        await asyncio.wait([self._writer])
        if self._appending is not None:
            await asyncio.wait([self._appending])  # a thread may still use the file
        for file in self._files:
            file.results.close()

    def _recover(self, file: _File) -> None:
        for custom_id, line in file.results.recovered():
            self._tokens.add(line)
            self._done.add(digest(custom_id))
            file.num_lines += 1

    async def _write(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            for file in self._files:
                pending, file.waiting = file.waiting, []
                if pending:
                    await self._append(file, pending)

    async def _append(self, file: _File, pending: list[tuple[bytes, bytes, "asyncio.Future[None]"]]) -> None:
        is_logged = False
        while True:
            try:
                lines = [line for _, line, _ in pending]
                self._appending = asyncio.ensure_future(asyncio.to_thread(self._append_now, file, lines))
                await asyncio.shield(self._appending)
                break
            except OSError as error:
                if not is_logged:
                    log.warning("results of a batch cannot be written, and it waits: %s", error.strerror)
                is_logged = True
                await asyncio.sleep(_PAUSE)
        file.num_lines += len(pending)
        for id, _, written in pending:
            self._done.add(id)
            if not written.done():
                written.set_result(None)

    def _append_now(self, file: _File, lines: Sequence[bytes]) -> None:
        file.results.append(b"".join(lines))
        for line in lines:
            self._tokens.add(line)
