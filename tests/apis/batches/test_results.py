"""The results of a running batch: written once each, and found again."""

import asyncio
import errno
import threading
from pathlib import Path

import pytest

from genai_server.apis.batches import results
from genai_server.apis.batches.results import Results
from genai_server.batch_files import ResultFile, error_line, response_line

pytestmark = pytest.mark.anyio
CHAT = (
    b'{"usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8,'
    b' "prompt_tokens_details": {"cached_tokens": 2}, "completion_tokens_details": {"reasoning_tokens": 1}}}'
)
RESPONSE = b'{"usage": {"input_tokens": 10, "output_tokens": 20, "input_tokens_details": null}}'
SUMS = {
    "input_tokens": 15,
    "input_tokens_details": {"cached_tokens": 2},
    "output_tokens": 23,
    "output_tokens_details": {"reasoning_tokens": 1},
    "total_tokens": 38,
}


async def opened(folder: Path) -> Results:
    return await Results.open(folder / "succeeded", folder / "failed")


def succeeded(custom_id: str, body: bytes = b"{}") -> tuple[str, bytes]:
    return custom_id, response_line(f"batch_req_{custom_id}", custom_id, 200, "req-1", body)


async def test_results_are_found_again(tmp_path: Path) -> None:
    first = await opened(tmp_path)
    await asyncio.gather(
        first.add([succeeded("a", CHAT), succeeded("b", RESPONSE)], succeeded=True),
        first.add([("c", error_line("batch_req_c", "c", "x", "y"))], succeeded=False),
    )
    sizes = first.sizes
    await first.add([], succeeded=False)
    assert (first.counts, first.sizes) == ((2, 1), sizes)
    await first.close()
    with (tmp_path / "succeeded").open("ab") as file:
        file.write(b'{"id":"batch_req_d","custom_id":"d","resp')
    second = await opened(tmp_path)
    assert [second.has(id) for id in "abcd"] == [True, True, True, False]
    assert (second.counts, second.sizes, second.usage) == ((2, 1), sizes, SUMS)
    assert second.usage == first.usage
    await second.close()


async def test_a_full_disk_delays_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "_PAUSE", 0.01)
    append, attempts = ResultFile.append, list[int]()

    def full_at_first(file: ResultFile, lines: bytes) -> None:
        attempts.append(len(lines))
        if len(attempts) < 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        append(file, lines)

    monkeypatch.setattr(ResultFile, "append", full_at_first)
    found = await opened(tmp_path)
    await found.add([succeeded("a")], succeeded=True)
    assert (len(attempts), found.counts, found.has("a")) == (4, (1, 0), True)
    await found.close()


async def test_closing_waits_for_a_write_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file's number could belong to another file by the time of the write."""
    append, begun, may_end = ResultFile.append, threading.Event(), threading.Event()

    def slow(file: ResultFile, lines: bytes) -> None:
        begun.set()
        assert may_end.wait(90)
        append(file, lines)

    monkeypatch.setattr(ResultFile, "append", slow)
    found = await opened(tmp_path)
    adding = asyncio.create_task(found.add([succeeded("a")], succeeded=True))
    await asyncio.to_thread(begun.wait)
    closing = asyncio.create_task(found.close())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not closing.done()
    may_end.set()
    await closing
    adding.cancel()
    again = await opened(tmp_path)
    assert again.has("a")
    await again.close()
