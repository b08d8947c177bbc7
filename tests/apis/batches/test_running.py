"""What a process makes of a batch that an earlier one has left."""

from pathlib import Path

import pytest
from starlette.types import Receive, Scope, Send

from genai_server.apis.batches.routes import WINDOWS, BatchRequest, new_batch
from genai_server.apis.batches.running import Answering, BatchLimits, BatchRun
from genai_server.store.batches import BatchStore
from tests.apis.batches.inputs import CHAT, jsonl, line
from tests.store.test_files import opened

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("window", [86_400, 0])
async def test_a_batch_that_was_stopped_sends_no_request(
    tmp_path: Path, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its input has never been checked: it was cancelled, or has expired, before."""
    monkeypatch.setitem(WINDOWS, "24h", window)
    sent = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        sent.append(scope["path"])

    async with opened(tmp_path) as files:
        batches = BatchStore(files)
        (tmp_path / "upload").write_bytes(jsonl([line("a"), line("a")]))
        file = await files.add(tmp_path / "upload", "input.jsonl", "batch", "", 100)
        given = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h"}
        created = new_batch(BatchRequest.model_validate(given), "")
        await batches.create(created)
        if window:
            await batches.cancel(created.id, "")
        (batch,) = await batches.open()
        answering = Answering(app, 4, lambda: False, lambda result: None)
        limits = BatchLimits(10, lambda: 1000, lambda model, endpoint: None)
        status = "cancelled" if window else "expired"
        assert await BatchRun(batch, batches, files, answering, limits).run() == status
        assert sent == []
        found = await batches.get(created.id, "")
        assert (found["status"], found["request_counts"]) == (status, {"total": 0, "completed": 0, "failed": 0})
