"""What the metrics say of an engine's KV cache; all others are tested on a server."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec import structs

from genai_server.api.catalog import Catalog
from genai_server.api.telemetry.engine_metrics import EngineMetrics
from genai_server.config import Settings
from genai_server.engine_client.client import EngineClient
from genai_server.generation import Batching
from genai_server.messages.figures import Figures, Histogram
from genai_server.messages.status_file import EngineState

COUNTED: dict[str, Any] = {
    field.name: Histogram([], [0], 0.0) if field.type is Histogram else 0 for field in structs.fields(Figures)
}


@pytest.mark.parametrize(("kv_tokens", "capacity"), [(0, 4 * 512), (1000, 1000)])
def test_the_kv_cache_holds_what_the_engine_says_or_else_a_full_length_in_each_slot(
    kv_tokens: int, capacity: int
) -> None:
    engine: Any = SimpleNamespace(
        model_name="m",
        device="cpu",
        batching=Batching("batched", num_slots=4, kv_tokens=kv_tokens),
        model=SimpleNamespace(context_length=512),
        figures=Figures(**(COUNTED | {"kv_tokens": 256})),
        status=lambda: SimpleNamespace(state=EngineState.STARTING, restarts=0),
        is_connected=False,
    )
    models: Any = SimpleNamespace(attached_engines=lambda: [cast(EngineClient, engine)])
    metrics = {
        found.name: found for found in EngineMetrics(Settings.model_validate({}), cast(Catalog, models)).collect()
    }
    (usage,) = metrics["genai:kv_cache_usage_perc"].samples
    assert (usage.labels, usage.value) == ({"model_name": "m", "device": "cpu"}, 256 / capacity)
