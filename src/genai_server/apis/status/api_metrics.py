"""The Prometheus metrics that each API process counts: requests, answers, batches, grammar checks, images and
recordings.

Names and meanings are vLLM's where vLLM has the metric, with another prefix
(https://docs.vllm.ai/en/stable/usage/metrics/).
"""

from collections.abc import Callable, Iterable
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.multiprocess import MultiProcessCollector

from genai_server.grammar_checker import checker as grammars
from genai_server.http.telemetry.request_record import ABORT, AnswerFigures, RequestRecord
from genai_server.media.audio import recordings
from genai_server.media.images import reader as images
from genai_server.messages.generation_request import FinishReason

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
    """The registry that Prometheus scrapes, and the instruments with which this process counts. All names begin with
    `prefix`.

    `with_keys` adds a label with the name of the API key to the counters of requests. `shared` is a folder that all API
    processes share; the registry then reports the sums of all processes, including those that have ended.
    prometheus-client must have been imported with this folder in its environment variable.
    """
    registry = CollectorRegistry()
    if shared is None:
        return registry, Instruments(registry, prefix, with_keys=with_keys)
    MultiProcessCollector(registry, str(shared))  # type: ignore[no-untyped-call]
    return registry, Instruments(CollectorRegistry(), prefix, with_keys=with_keys)


class Instruments:
    """The Prometheus counters and histograms of an API process. `observe` counts a request that has ended; each
    attribute `count_…` is a function that counts one event of another kind by its result.
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
        """Count a request that has ended, with its answers. A refused request that would only have read data is not
        counted.
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
        """Count the tokens of an answer, and also its times if a client waits for the answer (`waits`).

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
