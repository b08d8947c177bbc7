"""Metrics of an engine's KV cache, and those that routers read; all others are tested on a server."""

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec import structs
from prometheus_client.core import Metric

from genai_server.apis.status.engine_metrics import EngineMetrics
from genai_server.config import Settings
from genai_server.generation.catalog import Catalog
from genai_server.messages.figures import Figures, Histogram
from genai_server.messages.generation_request import Batching
from genai_server.messages.protocol import Load
from genai_server.messages.status_file import EngineState

COUNTED: dict[str, Any] = {
    field.name: Histogram([], [0], 0.0) if field.type is Histogram else 0 for field in structs.fields(Figures)
}


def engine(device: str = "cpu", *, is_connected: bool = False, **counted: int) -> Any:
    """An engine with four slots; `capacity`, if given, is the number of tokens that its batch has memory for."""
    return SimpleNamespace(
        model_name="m",
        device=device,
        batching=Batching("batched", num_slots=4, kv_tokens=counted.pop("capacity", 0)),
        model=SimpleNamespace(context_length=512),
        load=Load(running=counted.pop("running", 0), waiting=counted.pop("waiting", 0)),
        figures=Figures(**(COUNTED | counted)),
        status=lambda: SimpleNamespace(state=EngineState.STARTING, restarts=0),
        is_connected=is_connected,
    )


def collect(*engines: Any, adapters: tuple[str, ...] = (), prefix: str = "genai:") -> dict[str, Metric]:
    """The metrics of some engines by name."""
    models: Any = SimpleNamespace(attached_engines=lambda: list(engines), adapter_ids=lambda: list(adapters))
    settings = Settings.model_validate({"metrics_prefix": prefix})
    return {found.name: found for found in EngineMetrics(settings, cast(Catalog, models)).collect()}


@pytest.mark.parametrize(("kv_tokens", "capacity"), [(0, 4 * 512), (1000, 1000)])
def test_kv_cache_capacity_is_the_engines_or_all_full_slots(kv_tokens: int, capacity: int) -> None:
    metrics = collect(engine(capacity=kv_tokens, kv_tokens=256))
    (usage,) = metrics["genai:kv_cache_usage_perc"].samples
    assert (usage.labels, usage.value) == ({"model_name": "m", "device": "cpu"}, 256 / capacity)


def test_server_series_sum_the_devices() -> None:
    metrics = collect(
        engine("cpu:0", is_connected=True, capacity=1600, kv_tokens=800, running=2, waiting=1),
        engine("cpu:1", is_connected=True, capacity=800, kv_tokens=0, running=1, waiting=4),
        engine("cpu:2", capacity=1600, kv_tokens=0, running=9),
    )
    for name, value in (("num_requests_running", 3), ("num_requests_waiting", 5), ("kv_cache_usage_perc", 800 / 2400)):
        (whole,) = metrics[f"genai:server_{name}"].samples
        assert (whole.labels, whole.value) == ({}, value)
        assert len(metrics[f"genai:{name}"].samples) >= 2


def test_a_router_finds_the_size_of_the_cache_in_blocks() -> None:
    (info,) = collect(engine(is_connected=True, capacity=1000))["genai:cache_config_info"].samples
    assert info.labels == {"model_name": "m", "device": "cpu", "block_size": "16", "num_gpu_blocks": "62"}
    assert info.value == 1


def test_adapters_are_listed_by_the_ids_of_requests() -> None:
    (info,) = collect(adapters=("m:law", "m:chess"))["genai:lora_requests_info"].samples
    assert info.labels == {"max_lora": "2", "running_lora_adapters": "m:law,m:chess", "waiting_lora_adapters": ""}
    assert info.value == pytest.approx(time.time(), abs=60)


def test_vllm_prefix_adds_vllms_old_names() -> None:
    metrics = collect(engine(is_connected=True, capacity=512, kv_tokens=256, cache_queries=7), prefix="vllm:")
    for old, new in (
        ("gpu_cache_usage_perc", "kv_cache_usage_perc"),
        ("gpu_prefix_cache_queries", "prefix_cache_queries"),
    ):
        (sample,), (same,) = metrics[f"vllm:{old}"].samples, metrics[f"vllm:{new}"].samples
        assert (sample.labels, sample.value) == (same.labels, same.value)
        assert sample.name == same.name.replace(new, old)
    assert not any(name.startswith("genai:") for name in metrics)
    assert "genai:gpu_cache_usage_perc" not in collect(engine(is_connected=True))
