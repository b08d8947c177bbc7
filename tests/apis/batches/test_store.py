"""Which batches are kept."""

from pathlib import Path

import pytest

from genai_server.apis.batches import store
from genai_server.apis.batches.schemas import BatchRequest
from genai_server.apis.batches.store import BatchStore
from genai_server.apis.files.store import FileLimits, FileStore
from tests.apis.batches.inputs import CHAT

pytestmark = pytest.mark.anyio


async def test_the_latest_batches_are_kept_within_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MAX_KEPT_BYTES", 20_000)
    files = FileStore(tmp_path / "files", FileLimits(10**6, 10**7))
    batches = BatchStore(files)
    ids = {}
    for owner, size in (("alice", 500), ("bob", 1)):
        (tmp_path / "upload").write_bytes(b"{}")
        file = await files.add(tmp_path / "upload", "input.jsonl", "batch", owner, 100)
        metadata = {f"{number}": "x" * size for number in range(16)}
        given = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h", "metadata": metadata}
        ids[owner] = [(await batches.create(BatchRequest.model_validate(given), owner))["id"] for _ in range(4)]
    # A batch that has not ended is kept whatever its size.
    for batch in (await batches.open())[1:]:
        await batches.end(batch, {"status": "cancelled"}, (0, 0))
    first, _, *latest = ids["alice"]
    for owner, kept in (("alice", [first, *latest]), ("bob", ids["bob"])):
        page, _ = await batches.page(owner, after=None, limit=10)
        assert [batch["id"] for batch in page] == kept[::-1]
    await files.close()
