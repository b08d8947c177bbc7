"""The Prometheus metrics of a server. The endpoint /metrics serves two groups: what each API process counts itself
(requests, answers, batches, grammar checks, images and recordings), and the metrics of the engines and of the
supervisor, the process that starts them. The endpoint /metrics/history has the load of each device in the last five
minutes, for the charts of the web page; longer histories are left to Prometheus.

Names and meanings are vLLM's where vLLM has the metric, with another prefix
(https://docs.vllm.ai/en/stable/usage/metrics/). The metrics follow the protocol for model servers of the Gateway API
Inference Extension (https://gateway-api-inference-extension.sigs.k8s.io), which routers read: running and waiting
requests, use and size of the KV cache, and adapters.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any, NoReturn

from fastapi import APIRouter, Request
from fastapi.responses import Response
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from genai_server.config.settings import Settings
from genai_server.engine_client.client import EngineClient
from genai_server.generation.catalog import Catalog
from genai_server.generation.dependencies import ServicesDep
from genai_server.grammar_checker import checker as grammars
from genai_server.http.telemetry.recent_requests import RecentRequests
from genai_server.http.telemetry.request_record import ABORT, AnswerFigures, RequestRecord
from genai_server.media.audio import recordings
from genai_server.media.images import reader as images
from genai_server.messages import engine_protocol
from genai_server.messages.engine_protocol import DiskCacheFigures
from genai_server.messages.generation_request import FinishReason
from genai_server.messages.prefix_cache import BLOCK_TOKENS
from genai_server.messages.server_status import EngineState

_LABELS = ("model_name", "device")
# The label with the name of the API key (GENAI_METRICS_KEYS).
KEY_LABEL = "key_name"
# Seconds; the same bounds as vLLM's, for dashboards.
_FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640),
    2560,
)
_PHASE = (0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_TOKEN = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_NUMBER = tuple(digit * 10**zeros for zeros in range(6) for digit in (1, 2, 5))
# The parts of Breakdown.
_PARTS = {
    "receive": "From a request's first byte to its last.",
    "load": "Waiting for the model to be loaded.",
    "prepare": "All else before the first token: checks, template, tokenizer, grammar, messages to the engine.",
    "queue": "Waiting in the engine, until the first pass began.",
    "prefill": "From there to the first token.",
    "decode": "From the first token to the last, in the engine.",
    "deliver": "All else after the first token: messages from the engine, text, a client that reads slowly.",
}
_REASONS = {*FinishReason, ABORT}
_BATCH_STATES = ("completed", "failed", "expired", "cancelled")


def api_metrics(
    shared: Path | None, prefix: str, *, with_keys: bool = False
) -> "tuple[CollectorRegistry, Instruments]":
    """Create the registry that Prometheus scrapes, and the instruments with which this API process counts. All names of
    metrics begin with `prefix`.

    `with_keys` adds a label with the name of the API key to the counters of requests. `shared` is a folder that all API
    processes share, or None if there is only one process. With a folder, the registry reports the sums of all
    processes, including those that have ended; prometheus-client must have been imported while the environment variable
    PROMETHEUS_MULTIPROC_DIR had this folder.
    """
    registry = CollectorRegistry()
    if shared is None:
        return registry, Instruments(registry, prefix, with_keys=with_keys)
    MultiProcessCollector(registry, str(shared))  # type: ignore[no-untyped-call]
    return registry, Instruments(CollectorRegistry(), prefix, with_keys=with_keys)


class Instruments:
    """The Prometheus counters and histograms of an API process. `api_metrics` creates them.

    `observe` counts a request that has ended. The attributes whose names begin with `count_` are functions that count
    one event, such as a checked grammar or an ended batch, by its result.
    """

    def __init__(self, registry: CollectorRegistry, prefix: str, *, with_keys: bool = False) -> None:
        self._with_keys = with_keys
        keys = (KEY_LABEL,) if with_keys else ()

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(prefix + name, text, _LABELS, buckets=buckets, registry=registry)

        def counter(name: str, text: str, label: str, values: Iterable[str]) -> Callable[[str], None]:
            """Create a counter with one label. Returns a function that counts one event, given the label's value. All
            of `values` are exported from the start, as 0.
            """
            counted = Counter(prefix + name, text, (label,), registry=registry)
            for value in values:
                counted.labels(value)
            return lambda value: counted.labels(value).inc()

        self._ended = Counter(
            prefix + "request_success",
            "Answers that have ended, by their reason.",
            (*_LABELS, *keys, "finished_reason"),
            registry=registry,
        )
        self._rejected = Counter(
            prefix + "request_rejected",
            "Requests that were refused, by the code of their error.",
            (*_LABELS, *keys, "reason"),
            registry=registry,
        )
        self.count_check = counter(
            "grammar_checks", "Grammars that were checked, by how that ended.", "result", grammars.RESULTS
        )
        self.count_image = counter(
            "images", "Images that were prepared for a model, by how that ended.", "result", images.RESULTS
        )
        self.count_recording = counter(
            "recordings", "Recordings that were decoded, by how that ended.", "result", recordings.RESULTS
        )
        self.count_batch = counter("batches", "Batches that have ended, by their state.", "status", _BATCH_STATES)
        self.count_batch_request = counter(
            "batch_requests",
            "Requests of batches: completed, failed, or sent again because the server could not take them.",
            "result",
            ("completed", "failed", "retried"),
        )
        self._ttft = histogram(
            "time_to_first_token_seconds", "From a request's first byte to the first token.", _FIRST_TOKEN
        )
        self._total = histogram(
            "e2e_request_latency_seconds", "From a request's first byte to the end of the answer.", _PHASE
        )
        self._parts = {name: histogram(f"request_{name}_time_seconds", text, _PHASE) for name, text in _PARTS.items()}
        self._inference = histogram("request_inference_time_seconds", "Prefill and decode together.", _PHASE)
        self._tpot = histogram("request_time_per_output_token_seconds", "An answer's mean, without the first.", _TOKEN)
        self._prompt = histogram("request_prompt_tokens", "Tokens of a prompt.", _NUMBER)
        self._output = histogram("request_generation_tokens", "Tokens of an answer.", _NUMBER)
        self._longest = histogram(
            "request_max_num_generation_tokens", "Tokens of the longest answer to a prompt.", _NUMBER
        )

    def observe(self, record: RequestRecord) -> None:
        """Count a request that has ended, with its answers, in the metrics. A refused request is not counted if it
        would only have read data.
        """
        labels = (record.model, record.device)
        keys = (record.key_name,) if self._with_keys else ()
        if not record.answers and record.status >= 400 and not record.only_reads:
            self._rejected.labels(*labels, *keys, record.error_code or str(record.status)).inc()
        for answer in record.answers:
            outcome = answer.outcome
            self._ended.labels(*labels, *keys, outcome if outcome in _REASONS else "error").inc()
            self._observe_answer(answer, labels, waits=not record.is_low_priority)
        for first in range(0, len(record.answers), record.num_per_prompt):
            to_one = record.answers[first : first + record.num_per_prompt]
            self._longest.labels(*labels).observe(max(answer.usage.completion for answer in to_one))

    def _observe_answer(self, answer: AnswerFigures, labels: tuple[str, str], *, waits: bool) -> None:
        """Count the tokens of an answer and, if a client waits for the answer (`waits`), also its times. `labels` are
        the names of the model and the device.

        The times of answers in batches are left out, since they do not show how fast the service is.
        """
        timings = answer.timings()
        times = (
            (self._ttft, timings.ttft),
            (self._total, timings.total_latency),
            (self._tpot, timings.tpot),
        )
        tokens = ((self._prompt, timings.input_tokens), (self._output, timings.output_tokens))
        for instrument, value in (*(times if waits else ()), *tokens):
            if value is not None:
                instrument.labels(*labels).observe(value)
        if waits and (breakdown := timings.breakdown) is not None:
            for name, instrument in self._parts.items():
                instrument.labels(*labels).observe(getattr(breakdown, name))
            self._inference.labels(*labels).observe(breakdown.prefill + breakdown.decode)


PATH = "/metrics"

router = APIRouter(tags=["status"])

# The prefix that programs made for vLLM expect.
VLLM_PREFIX = "vllm:"
# vLLM's former metric names, which routers and dashboards still use. Exported only with VLLM_PREFIX.
_OLD_NAMES = {
    "kv_cache_usage_perc": "gpu_cache_usage_perc",
    "prefix_cache_queries": "gpu_prefix_cache_queries",
    "prefix_cache_hits": "gpu_prefix_cache_hits",
    "inter_token_latency_seconds": "time_per_output_token_seconds",
}
# Values of _LABELS: model name and device.
Labels = tuple[str, str]


class EngineMetrics(Collector):
    """Makes the metrics of engines and of the server as a whole when Prometheus scrapes. It uses the reports that
    engines send regularly, so that it need not wait for an engine. It is registered with a Prometheus registry as a
    collector.

    Metrics that need an engine's report are absent while the engine is not connected.
    """

    def __init__(self, settings: Settings, models: Catalog) -> None:
        self._settings = settings
        self._models = models
        self._prefix = settings.metrics_prefix

    @property
    def _engines(self) -> dict[Labels, EngineClient]:
        return {(engine.model_name, engine.device): engine for engine in self._models.attached_engines()}

    @property
    def _connected(self) -> dict[Labels, EngineClient]:
        return {labels: engine for labels, engine in self._engines.items() if engine.is_connected}

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics of the engines and of the server. The client library of Prometheus
        calls this at each scrape.
        """
        for metrics in (self._of_all(), self._of_connected(), self._of_counting(), self._of_server()):
            for metric in metrics:
                yield metric
                old = _OLD_NAMES.get(metric.name.removeprefix(self._prefix))
                if old is not None and self._prefix == VLLM_PREFIX:
                    yield _renamed(metric, self._prefix + old)

    def loads(self) -> dict[Labels, dict[str, Any]]:
        """Return the current load and the counters of each connected engine, keyed by the names of its model and
        device. LoadHistory keeps them for the charts of the web page.
        """
        by_engine = {}
        for labels, engine in self._connected.items():
            figures = engine.figures
            if figures is None:
                continue
            by_engine[labels] = {
                "running": engine.load.running,
                "waiting": engine.load.waiting,
                "slots": self._num_slots(engine),
                "kv_usage": round(figures.kv_tokens / self._capacity(labels), 4),
                "prompt_tokens": figures.prompt_tokens,
                "output_tokens": figures.generation_tokens,
                "cache_queries": figures.cache_queries,
                "cache_hits": figures.cache_hits,
                "gap_bounds": figures.token_gaps.bounds,
                "token_gaps": figures.token_gaps.counts,
                "token_gap_seconds": round(figures.token_gaps.sum, 4),
            }
        return by_engine

    def _of_all(self) -> Iterator[Metric]:
        engines = self._engines
        statuses = {labels: engine.status() for labels, engine in engines.items()}
        up = {
            labels: status.state == EngineState.READY and not engines[labels].load.terminated
            for labels, status in statuses.items()
        }
        restarts = {labels: status.restarts for labels, status in statuses.items()}
        yield self._gauge("engine_up", "Whether the engine takes work.", up)
        yield self._counter("engine_restarts", "Number of engine restarts.", restarts)

    def _of_connected(self) -> Iterator[Metric]:
        engines = self._connected
        for name, text, field in _GAUGES:
            yield self._gauge(name, text, {labels: getattr(engine.load, field) for labels, engine in engines.items()})
        slots = {labels: self._num_slots(engine) for labels, engine in engines.items()}
        yield self._gauge("num_slots", "Number of sequences that can run at the same time.", slots)
        info = GaugeMetricFamily(
            self._prefix + "cache_config_info",
            "Size of the KV cache in vLLM's blocks, as labels; the value is always 1.",
            labels=(*_LABELS, "block_size", "num_gpu_blocks"),
        )
        for labels in engines:
            info.add_metric([*labels, str(BLOCK_TOKENS), str(self._capacity(labels) // BLOCK_TOKENS)], 1)
        yield info

    def _of_server(self) -> Iterator[Metric]:
        """Yield the metrics about the server as a whole, which routers read to choose a server: running and waiting
        sequences and the use of the KV cache on all devices together, and the ids of the loaded LoRA adapters.
        """
        engines = self._connected
        used = sum(engine.figures.kv_tokens for engine in engines.values() if engine.figures is not None)
        capacity = sum(map(self._capacity, engines))
        for name, text, value in (
            (
                "num_requests_running",
                "Number of running sequences on all devices.",
                sum(engine.load.running for engine in engines.values()),
            ),
            (
                "num_requests_waiting",
                "Number of waiting sequences on all devices.",
                sum(engine.load.waiting for engine in engines.values()),
            ),
            ("kv_cache_usage_perc", "kv_cache_usage_perc of all devices together.", used / max(1, capacity)),
        ):
            yield GaugeMetricFamily(f"{self._prefix}server_{name}", text, value)
        adapters = self._models.adapter_ids()
        info = GaugeMetricFamily(
            self._prefix + "lora_requests_info",
            "Ids of loaded adapters, as labels; the value is a Unix timestamp.",
            labels=("max_lora", "running_lora_adapters", "waiting_lora_adapters"),
        )
        # An adapter is loaded on all devices, or its requests are refused: adapters never wait or evict each other.
        info.add_metric([str(len(adapters)), ",".join(adapters), ""], time.time())
        yield info

    def _of_counting(self) -> Iterator[Metric]:
        figures = {name: engine.figures for name, engine in self._engines.items() if engine.figures is not None}
        yield self._gauge(
            "kv_cache_usage_perc",
            "Share of the KV cache that running sequences use; 1 is all.",
            {labels: each.kv_tokens / self._capacity(labels) for labels, each in figures.items()},
        )
        yield self._gauge(
            "num_requests_profiled",
            "Number of running sequences that are profiled.",
            {labels: each.profiled for labels, each in figures.items()},
        )
        for name, text, field in _TOKEN_COUNTERS:
            counts = {labels: getattr(each, field) for labels, each in figures.items()}
            yield self._counter_by_key(name, text, counts)
        for name, text, field in _COUNTERS:
            yield self._counter(name, text, {labels: getattr(each, field) for labels, each in figures.items()})
        on_disk = {labels: each.disk_cache or DiskCacheFigures() for labels, each in figures.items()}
        for name, text, field in _DISK_COUNTERS:
            yield self._counter(name, text, {labels: getattr(each, field) for labels, each in on_disk.items()})
        sizes = {labels: each.num_bytes for labels, each in on_disk.items()}
        yield self._gauge("prefix_disk_cache_bytes", "Size of the prefix cache on disk, of all models.", sizes)
        yield self._gauge(
            "draft_memory_bytes",
            "Memory of the answers that are kept for drafts.",
            {labels: each.answer_bytes for labels, each in figures.items()},
        )
        for name, text, field in _HISTOGRAMS:
            family = HistogramMetricFamily(self._prefix + name, text, labels=_LABELS)
            for labels, each in figures.items():
                _add(family, labels, getattr(each, field))
            yield family

    def _num_slots(self, engine: EngineClient) -> int:
        return engine.batching.num_slots or self._settings.max_batch_size

    def _capacity(self, labels: Labels) -> int:
        engine = self._engines[labels]
        if engine.figures is not None and engine.figures.kv_capacity:
            return engine.figures.kv_capacity
        return self._num_slots(engine) * (engine.model.max_length if engine.model else 1)

    def _gauge(self, name: str, text: str, values: Mapping[Labels, float]) -> Metric:
        return self._filled(GaugeMetricFamily(self._prefix + name, text, labels=_LABELS), values)

    def _counter(self, name: str, text: str, values: Mapping[Labels, float]) -> Metric:
        return self._filled(CounterMetricFamily(self._prefix + name, text, labels=_LABELS), values)

    def _counter_by_key(self, name: str, text: str, values: Mapping[Labels, Mapping[str, int]]) -> Metric:
        """Return a counter metric with the values of each engine and API key. If GENAI_METRICS_KEYS is set, the metric
        has a label for the key, otherwise the sum over all keys.

        `text` describes the metric. `values` maps the names of an engine's model and device to the values by key.
        """
        if not self._settings.metrics_keys:
            return self._counter(name, text, {labels: sum(by_key.values()) for labels, by_key in values.items()})
        family = CounterMetricFamily(self._prefix + name, text, labels=(*_LABELS, KEY_LABEL))
        for labels, by_key in values.items():
            for key_name, value in by_key.items():
                family.add_metric([*labels, key_name], value)
        return family

    def _filled(self, family: GaugeMetricFamily | CounterMetricFamily, values: Mapping[Labels, float]) -> Metric:
        for labels, value in values.items():
            family.add_metric(list(labels), value)
        return family


# Fields of Load.
_GAUGES = (
    ("num_requests_running", "Number of running sequences, without those of low priority.", "running"),
    ("num_requests_waiting", "Number of waiting sequences, without those of low priority.", "waiting"),
    ("num_background_requests_running", "Number of running low-priority sequences.", "low_priority_running"),
    (
        "num_background_requests_waiting",
        "Number of low-priority sequences that wait or are preempted.",
        "low_priority_waiting",
    ),
    ("session_terminated", "Whether an operator has terminated the device's session.", "terminated"),
)
# Fields of DiskCacheFigures.
_DISK_COUNTERS = (
    ("prefix_disk_cache_loads", "Number of prefixes loaded from disk.", "loads"),
    ("prefix_disk_cache_loaded_tokens", "Number of prompt tokens loaded from disk.", "loaded_tokens"),
    ("prefix_disk_cache_load_seconds", "Time spent loading prefixes from disk.", "load_seconds"),
    ("prefix_disk_cache_stored_tokens", "Number of tokens whose keys and values were stored on disk.", "stored_tokens"),
)
# Fields of Figures, by API key.
_TOKEN_COUNTERS = (
    ("prompt_tokens", "Number of prompt tokens processed.", "prompt_tokens_by_key"),
    ("generation_tokens", "Number of tokens generated.", "generation_tokens_by_key"),
)
# Fields of Figures.
_COUNTERS = (
    ("prefix_cache_queries", "Number of prompt tokens looked up in the prefix cache.", "cache_queries"),
    ("prefix_cache_hits", "Number of prompt tokens found in the prefix cache.", "cache_hits"),
    ("spec_decode_num_draft_tokens", "Number of tokens drafted.", "drafted"),
    ("spec_decode_num_accepted_tokens", "Number of drafted tokens accepted.", "accepted"),
    ("images_encoded", "Number of images that the vision graph encoded.", "encoded_images"),
    ("sounds_encoded", "Number of windows of recordings that the encoder read.", "encoded_sounds"),
    (
        "background_pauses",
        "How often low-priority sequences gave up their slots to others.",
        "low_priority_preemptions",
    ),
    ("num_preemptions", "How often running sequences were preempted for lack of memory.", "preemptions"),
    ("request_terminated", "Number of sequences ended by terminate_session.", "terminated"),
    ("profile_sessions", "Number of profile sessions started.", "profile_sessions"),
)
_HISTOGRAMS = (
    ("inter_token_latency_seconds", "Time between two tokens of an answer.", "token_gaps"),
    ("prefill_step_time_seconds", "Time of a forward pass that reads a prompt.", "prefill_passes"),
    ("decode_step_time_seconds", "Time of a forward pass that decodes.", "decode_passes"),
    ("decode_batch_size", "Number of sequences decoded in a forward pass.", "decode_rows"),
)


def _renamed(metric: Metric, name: str) -> Metric:
    """Return a copy of a metric under another name, for dashboards that use the name. The original is not changed."""
    copy = Metric(name, metric.documentation, metric.type)
    copy.samples = [sample._replace(name=name + sample.name.removeprefix(metric.name)) for sample in metric.samples]
    return copy


def _add(family: HistogramMetricFamily, labels: Labels, values: engine_protocol.Histogram) -> None:
    ends: Iterable[str] = [*(str(float(bound)) for bound in values.bounds), "+Inf"]
    family.add_metric(list(labels), list(zip(ends, accumulate(values.counts), strict=True)), values.sum)


@router.get(PATH, responses={200: {"content": {"text/plain": {}}}}, response_class=Response)
async def metrics(services: ServicesDep) -> Response:
    """Get the metrics in Prometheus's text format. Each API process gives the same ones.

    The OpenMetrics format is never used: in it, prometheus-client 0.26 writes samples with an underscore instead of the
    colon in the prefix, so that queries of dashboards would not find them.
    """
    return Response(await asyncio.to_thread(generate_latest, services.registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)


HISTORY_PATH = "/metrics/history"
# Seconds between two samples, and how many are kept.
INTERVAL = 2.0
MAX_SAMPLES = 150


class LoadHistory:
    """Keeps samples of the engines' load for the last five minutes, for the charts of the web page. Each API process
    has one such object. Samples are taken every two seconds from the reports that engines have sent, without waiting
    for an engine.
    """

    def __init__(self, metrics: EngineMetrics, requests: RecentRequests) -> None:
        self._metrics = metrics
        self._requests = requests
        self._samples: dict[Labels, deque[dict[str, Any]]] = {}

    async def follow(self) -> NoReturn:
        """Take a sample every two seconds until this task is cancelled."""
        while True:
            self._sample(time.time())
            await asyncio.sleep(INTERVAL)

    def _sample(self, now: float) -> None:
        """Add a sample of the current load for each device, and forget devices that have had no samples for five
        minutes. `now` is the current time in seconds since 1970.
        """
        for labels, load in self._metrics.loads().items():
            number, total = self._requests.first_tokens.get(labels, (0, 0.0))
            sample = {"time": round(now, 3), **load, "first_tokens": number, "first_token_seconds": round(total, 4)}
            self._samples.setdefault(labels, deque(maxlen=MAX_SAMPLES)).append(sample)
        for labels, samples in list(self._samples.items()):
            if samples[-1]["time"] < now - INTERVAL * MAX_SAMPLES:
                del self._samples[labels]

    def since(self, since: float) -> list[dict[str, Any]]:
        """Return the samples of each device that were taken after the time `since`, in seconds since 1970."""
        return [
            {"model": model, "device": device, "samples": [sample for sample in samples if sample["time"] > since]}
            for (model, device), samples in self._samples.items()
        ]


@router.get(HISTORY_PATH)
async def load_history(request: Request, since: float = 0.0) -> dict[str, Any]:
    """Get samples of each device's load and counters, taken every two seconds and kept for five minutes, for charts.

    Only samples after `since`, in seconds since 1970, are returned. Counters begin at 0 when the engine starts.
    `token_gaps` counts the times between two tokens of an answer by their length: one count for each of the upper
    limits `gap_bounds` (in seconds), and one for longer times. Times to the first token are those of one API process
    only.
    """
    return {"object": "list", "interval": INTERVAL, "data": request.app.state.history.since(since)}
