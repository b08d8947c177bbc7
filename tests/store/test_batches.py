"""Which batches are kept."""

from pathlib import Path

import pytest

from genai_server.apis.batches.routes import BatchRequest, new_batch
from genai_server.store import batches as store
from genai_server.store.batches import BatchStore
from tests.apis.batches.inputs import CHAT
from tests.store.test_files import add, opened

pytestmark = pytest.mark.anyio


async def test_the_latest_batches_are_kept_within_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MAX_KEPT_BYTES", 20_000)
    async with opened(tmp_path) as files:
        batches = BatchStore(files)
        ids = {}
        for owner, size in (("alice", 500), ("bob", 1)):
            file = await add(files, tmp_path, owner=owner)
            metadata = {f"{number}": "x" * size for number in range(16)}
            given = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h", "metadata": metadata}
            added = [new_batch(BatchRequest.model_validate(given), owner) for _ in range(4)]
            for batch in added:
                await batches.create(batch)
            ids[owner] = [batch.id for batch in added]
        # A batch that has not ended is kept whatever its size.
        for batch in (await batches.open())[1:]:
            await batches.end(batch, {"status": "cancelled"}, (0, 0))
        first, _, *latest = ids["alice"]
        for owner, kept in (("alice", [first, *latest]), ("bob", ids["bob"])):
            page, _ = await batches.page(owner, after=None, limit=10)
            assert [batch["id"] for batch in page] == kept[::-1]
