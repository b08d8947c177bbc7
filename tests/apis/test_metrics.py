"""/metrics: what is counted, whichever API process is asked, and which clients may read it."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import psutil
import pytest
from fastapi.testclient import TestClient
from msgspec import structs
from prometheus_client.core import Metric

from genai_server.apis.metrics import EngineMetrics
from genai_server.config.settings import Settings
from genai_server.config.sources import load_settings
from genai_server.generation.catalog import Catalog
from genai_server.messages.engine_protocol import Figures, Histogram, Load
from genai_server.messages.generation_request import Batching
from genai_server.messages.server_status import (
    EngineState,
    EngineStatus,
    ModelState,
    ModelStatus,
    ServerStatus,
)
from tests.reported_status import reporting
from tests.running_server import RunningServer, body, last_event, run_server, suspended, wait_until
from tests.scraped import Scraped, parse, scrape
from tests.server_here import app_for, run_here

# vLLM's names: a dashboard replaces only the prefix.
OF_VLLM = """
num_requests_running num_requests_waiting kv_cache_usage_perc prefix_cache_queries_total prefix_cache_hits_total
prompt_tokens_total generation_tokens_total request_success_total time_to_first_token_seconds_bucket
inter_token_latency_seconds_bucket e2e_request_latency_seconds_bucket request_queue_time_seconds_bucket
request_prefill_time_seconds_bucket request_decode_time_seconds_bucket request_inference_time_seconds_bucket
request_time_per_output_token_seconds_bucket request_prompt_tokens_bucket request_generation_tokens_bucket
request_max_num_generation_tokens_bucket spec_decode_num_draft_tokens_total spec_decode_num_accepted_tokens_total
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with run_server(tmp_path_factory.mktemp("metrics"), "--device", "scripted", "--max-queue", "0") as server:
        yield server


def _ended(scraped: Scraped, **labels: str) -> float:
    return scraped.value("request_success_total", **labels)


@contextmanager
def counting(server: RunningServer) -> Iterator[Callable[..., float]]:
    """Gives what a sum of samples, chosen by name and labels, has grown by since the block began."""
    before = scrape(server)
    yield lambda name, **labels: scrape(server).value(name, **labels) - before.value(name, **labels)


def test_an_answer_is_counted_with_its_tokens_and_times(server: RunningServer) -> None:
    with counting(server) as more:
        assert server.chat("say hello").status_code == 200
        assert more("request_success_total", finished_reason="stop", device="scripted", model_name="demo") == 1
        assert more("request_generation_tokens_sum") == 5
        assert more("request_prompt_tokens_sum") == len("say hello\n\x04")
        for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time", "request_decode_time"):
            assert more(f"{name}_seconds_count") == 1
            assert more(f"{name}_seconds_sum") > 0
    wait_until(lambda: "genai:prompt_tokens_total" in scrape(server).names())
    assert {f"genai:{name}" for name in OF_VLLM.split()} <= scrape(server).names()


def test_each_of_several_answers_counts(server: RunningServer) -> None:
    with counting(server) as more:
        server.client.post("/v1/chat/completions", json=body("say abc", n=3)).raise_for_status()
        names = "request_success_total", "request_generation_tokens_sum", "request_max_num_generation_tokens_sum"
        assert [more(name) for name in names] == [3, 9, 3]


def test_refusals_are_counted_by_code_and_health_checks_not(server: RunningServer) -> None:
    with counting(server) as more:
        assert server.chat("say a", strem=True).status_code == 400
        assert server.client.get("/nowhere").status_code == 404
        assert more("request_rejected_total", reason="unknown_parameter") == more("request_rejected_total") == 1
        assert more("request_success_total") == 0


def test_disconnected_clients_answer_is_counted_as_aborted(server: RunningServer) -> None:
    with counting(server) as more:
        with server.stream("count 500; delay 0.02") as events:
            next(iter(events))
        wait_until(lambda: more("request_success_total", finished_reason="abort") == 1)
        assert more("request_success_total") == 1


def test_metrics_are_available_while_the_engine_is_blocked(server: RunningServer) -> None:
    engine = psutil.Process(server.device("scripted")["pid"])
    with server.begun("count 9; delay 0.05") as events:
        with suspended(engine):
            held = scrape(server)
        assert (held.value("num_requests_running"), held.value("engine_up")) == (1, 1)
        assert last_event(events)["done"]


def test_engine_counters_restart_after_its_death(own_folder: Path) -> None:
    with run_server(own_folder, "--device", "scripted") as server:
        assert server.chat("say hello").status_code == 200
        wait_until(lambda: scrape(server).value("generation_tokens_total") == 5)
        metrics = scrape(server)
        assert metrics.value("prompt_tokens_total") == len("say hello\n\x04")
        assert metrics.value("inter_token_latency_seconds_count") == 4
        assert metrics.value("decode_batch_size_count") == metrics.value("decode_step_time_seconds_count") > 0
        with server.stream("count 9; crash at 3") as events:
            list(events)
        wait_until(lambda: scrape(server).value("engine_restarts_total") == 1 and server.is_ready())
        assert server.chat("say hi").status_code == 200
        wait_until(lambda: scrape(server).value("generation_tokens_total") == 2)
        assert _ended(scrape(server), finished_reason="error") == 1
        assert _ended(scrape(server), finished_reason="stop") == 2


@pytest.mark.slow
def test_api_processes_report_the_same_sums(own_folder: Path) -> None:
    with run_server(own_folder, "--device", "scripted", "--workers", "2") as server:
        answered = 0

        def both_have_counted() -> bool:
            nonlocal answered
            # On a connection of its own, as each GET below.
            httpx.post(f"{server.url}/v1/chat", json=body("say hello"), timeout=90).raise_for_status()
            answered += 1
            return len({file.name for file in shared.glob("counter_*.db")}) == 2

        shared = _shared_folder(server)
        wait_until(both_have_counted)
        wait_until(lambda: scrape(server).value("generation_tokens_total") == 5 * answered)
        for _ in range(8):
            found = parse(httpx.get(f"{server.url}/metrics", timeout=90).text)
            assert _ended(found) == found.value("time_to_first_token_seconds_count") == answered
            assert found.value("generation_tokens_total") == 5 * answered
    assert not shared.exists()


def _shared_folder(server: RunningServer) -> Path:
    for child in psutil.Process(server.process.pid).children():
        if folder := child.environ().get("PROMETHEUS_MULTIPROC_DIR"):
            return Path(folder)
    raise AssertionError("no API process")


@pytest.mark.parametrize(("who", "stranger", "holder"), [("key", 401, 200), ("open", 200, 200), ("off", 401, 404)])
def test_the_operator_says_who_may_read_them(short_folder: Path, who: str, stranger: int, holder: int) -> None:
    values = {"device": "scripted", "api_keys": "a-key-of-sixteen-characters", "metrics": who}
    about = ModelStatus("demo", "", ["scripted"], 0, ModelState.LOADING, 0)
    status = ServerStatus("secret", [EngineStatus("scripted", EngineState.STARTING)], [about])
    app = app_for(load_settings(values, environ={}, dotenv=None), short_folder)
    with reporting(short_folder, status), TestClient(app, base_url="http://localhost") as client:
        assert client.get("/metrics").status_code == stranger
        bearer = {"authorization": "Bearer a-key-of-sixteen-characters"}
        assert client.get("/metrics", headers=bearer).status_code == holder


def test_names_are_the_same_in_whatever_form_is_asked_for(server: RunningServer) -> None:
    """Prometheus asks for OpenMetrics first."""
    asked = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
    for headers in ({}, {"accept": asked}):
        found = server.client.get("/metrics", headers=headers)
        assert found.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert "\ngenai:engine_up{" in found.text


COUNTED: dict[str, Any] = {
    field.name: Histogram([], [0], 0.0) if field.type is Histogram else 0
    for field in structs.fields(Figures)
    if field.required
}


def engine(device: str = "cpu", *, is_connected: bool = False, **counted: int) -> Any:
    """An engine with four slots; `capacity`, if given, is the number of tokens that its batch has memory for."""
    return SimpleNamespace(
        model_name="m",
        device=device,
        batching=Batching("batched", num_slots=4),
        model=SimpleNamespace(max_length=512),
        load=Load(running=counted.pop("running", 0), waiting=counted.pop("waiting", 0)),
        figures=Figures(**(COUNTED | {"kv_capacity": counted.pop("capacity", 0)} | counted)),
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
    for new in ("kv_cache_usage_perc", "prefix_cache_queries"):
        old = f"gpu_{new.removeprefix('kv_')}"
        (sample,), (same,) = metrics[f"vllm:{old}"].samples, metrics[f"vllm:{new}"].samples
        assert (sample.labels, sample.value) == (same.labels, same.value)
        assert sample.name == same.name.replace(new, old)
    assert not any(name.startswith("genai:") for name in metrics)
    assert "genai:gpu_cache_usage_perc" not in collect(engine(is_connected=True))


def test_samples_of_each_device_have_load_and_counters(scripted: RunningServer) -> None:
    before = time.time()
    scripted.chat("count 20", device="scripted:0")

    def history(**query: float) -> dict[str, list[Any]]:
        body = scripted.client.get("/metrics/history", params=query).json()
        assert body["interval"] == 2
        return {each["device"]: each["samples"] for each in body["data"]}

    def is_counted() -> bool:
        found = history(since=before)
        samples = found.get("scripted:0", [])
        return len(found) == 2 and bool(samples) and samples[-1]["output_tokens"] >= 20

    wait_until(is_counted)
    samples = history()["scripted:0"]
    last = samples[-1]
    assert [each["time"] for each in samples] == sorted(each["time"] for each in samples)
    assert min(last[name] for name in ("prompt_tokens", "first_tokens", "first_token_seconds", "slots")) > 0
    assert (len(last["token_gaps"]), sum(last["token_gaps"]) > 0) == (len(last["gap_bounds"]) + 1, True)
    assert list(history(since=time.time() + 9).values()) == [[], []]


@pytest.mark.parametrize(("who", "status"), [("key", 200), ("off", 404)])
def test_a_server_without_metrics_has_no_history(tmp_path: Path, who: str, status: int) -> None:
    with run_here(tmp_path, "--device", "scripted", settings={"GENAI_METRICS": who}) as server:
        assert server.client.get("/metrics/history").status_code == status
