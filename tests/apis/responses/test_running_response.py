"""A response in the background ends once, in memory and in the store, whatever ends it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from genai_server.answer_parts import Content
from genai_server.apis.responses.response import ResponseBuilder
from genai_server.apis.responses.running_response import Following, RunningResponse
from genai_server.apis.responses.store import CallerStore, ResponseStore
from genai_server.generation.answers import Ending, Generation, Piece
from genai_server.http.telemetry.request_record import Usage
from genai_server.messages.generation_request import FinishReason
from genai_server.store.database import open_store

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[ResponseStore]:
    database = open_store(tmp_path / "store.sqlite", 9000)
    yield ResponseStore(database, 9, 9000)
    await database.close()


class _Endless:
    """A generation that yields one piece and never ends."""

    def __init__(self) -> None:
        self.is_closed = False
        self.progress: tuple[int, int] | None = None

    async def pieces(self) -> AsyncIterator[tuple[int, Any, Piece | None]]:
        yield 0, None, Piece([Content("half")], [])
        await asyncio.Event().wait()

    def usage(self) -> Usage:
        return Usage(1)

    def close(self) -> None:
        self.is_closed = True


class _Cancelled(_Endless):
    """A generation that the engine ended on behalf of another process."""

    answers = ()

    async def pieces(self) -> AsyncIterator[tuple[int, Any, Piece | None]]:
        yield 0, None, Piece([Content("half")], [])
        yield 0, SimpleNamespace(ending=Ending(FinishReason.CANCELLED)), None


def _running(store: ResponseStore, generation: _Endless, items: Sequence[dict[str, Any]] = ()) -> RunningResponse:
    begun: dict[str, Any] = {"id": "resp_1", "object": "response", "status": "queued", "output": [], "store": True}
    stored = CallerStore(store, owner=None, request="req_1")
    build = ResponseBuilder(begun)
    return RunningResponse(cast(Generation, generation), build, list(items), stored, keeps_events=True)


async def test_response_stopped_before_its_first_step_has_an_end(store: ResponseStore) -> None:
    generation, counted, uncounted = _Endless(), ExitStack(), list[bool]()
    counted.callback(uncounted.append, True)
    running = _running(store, generation)
    await running.start_in_background(counted, nullcontext)
    await running.stop()
    assert running.response["status"] == "failed"
    assert [event["type"] async for event in running.follow()] == ["response.failed"]
    kept = await store.get("resp_1")
    assert kept is not running
    assert kept.response["error"]["type"] == "server_stopping"
    assert (generation.is_closed, uncounted) == (True, [True])


async def test_a_running_response_has_items_by_their_ids_and_keeps_its_text_when_stopped(store: ResponseStore) -> None:
    running = _running(store, _Endless(), items=[{"id": "in_1"}, {"id": "in_2"}])
    await running.start_in_background(ExitStack(), nullcontext)
    async for event in running.follow():
        if event["type"] == "response.output_text.delta":
            (message,) = running.response["output"]
            found = await store.find_items(["in_2", message["id"], "x"])
            assert found == {"in_2": {"id": "in_2"}, message["id"]: message}
            await running.stop()
    *_, message = await store.history("response", "resp_1", None)
    assert message["content"][0]["text"] == "half"


async def test_a_response_ends_even_if_it_cannot_be_kept(
    store: ResponseStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    running = _running(store, _Cancelled())

    async def fail(record: object) -> str | None:
        raise KeyError("status")

    monkeypatch.setattr(store, "finish", fail)
    await running.start_in_background(ExitStack(), nullcontext)
    last = [event async for event in running.follow()][-1]
    assert last["type"] == "response.incomplete"
    assert running.not_stored == "internal error; see the server log"
    assert "KeyError: 'status'" in caplog.text


async def test_cancellation_during_a_remote_check_ends_it_once(
    store: ResponseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = _running(store, _Cancelled())

    async def cancel_meanwhile(id: str, owner: str | None) -> bool:
        running.cancel()
        return False

    monkeypatch.setattr(store, "was_ended_by_other_process", cancel_meanwhile)
    await running.start_in_background(ExitStack(), nullcontext)
    numbers = [event["sequence_number"] async for event in running.follow()]
    assert numbers == list(range(len(numbers)))
    assert (await store.get("resp_1")).response["status"] == "cancelled"


async def test_a_stream_that_follows_has_the_progress_of_the_generation(store: ResponseStore) -> None:
    generation = _Endless()
    following = Following(_running(store, generation))
    for progress in ((3, 9), None):
        generation.progress = progress
        assert following.progress == progress
