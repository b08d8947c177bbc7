"""What the metrics say of an engine's KV cache; all others are tested on a server."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from genai_server.api.catalog import Catalog
from genai_server.api.telemetry.engine_metrics import EngineMetrics
from genai_server.config import Settings
from genai_server.engine_client.client import EngineClient
from genai_server.generation import Batching


@pytest.mark.parametrize(("kv_tokens", "capacity"), [(0, 4 * 512), (1000, 1000)])
def test_the_kv_cache_holds_what_the_engine_says_or_else_a_full_length_in_each_slot(
    kv_tokens: int, capacity: int
) -> None:
    engine: Any = SimpleNamespace(
        model_name="m",
        device="cpu",
        batching=Batching("batched", num_slots=4, kv_tokens=kv_tokens),
        model=SimpleNamespace(context_length=512),
    )
    models: Any = SimpleNamespace(attached_engines=lambda: [cast(EngineClient, engine)])
    metrics = EngineMetrics(Settings.model_validate({}), cast(Catalog, models))
    assert metrics._capacity(("m", "cpu")) == capacity
