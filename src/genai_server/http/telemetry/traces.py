"""Exports requests as OpenTelemetry spans, in the background (`Traces`). Needs the optional dependencies `otel`."""

from collections.abc import Mapping
from dataclasses import asdict

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue
from starlette.datastructures import Headers

from genai_server import __version__
from genai_server.http.telemetry.request_record import AnswerFigures, RequestRecord

_NANO = 1_000_000_000
# GenAI operation names, keyed by path without its version.
_OPERATIONS = {
    "/completions": "text_completion",
    "/embeddings": "embeddings",
    "/rerank": "rerank",
    "/score": "score",
}


class Traces:
    """Creates an OpenTelemetry span for each request that does more than read, with a child span for each part of an
    answer's time. The caller passes `observe` to the app as an observer, and must close the object.

    The parent is the client's span, if the request names one (`traceparent`). Spans contain no prompts or answers. They
    are sent to the URL `endpoint` by OTLP over HTTP. All other settings are read by OpenTelemetry from its own
    environment variables, `OTEL_…`.
    """

    def __init__(self, endpoint: str) -> None:
        resource = Resource.create({"service.name": "genai-server", "service.version": __version__})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint)))
        self._tracer = self._provider.get_tracer("genai_server", __version__)
        self._propagator = TraceContextTextMapPropagator()

    def observe(self, record: RequestRecord) -> None:
        """Create the spans of a request that has ended. No span is created for a request that only reads."""
        if record.only_reads:
            return
        headers = Headers(scope=record.scope)
        carried = {name: headers[name] for name in self._propagator.fields if name in headers}
        span = self._tracer.start_span(
            _name(record),
            context=self._propagator.extract(carried),
            kind=SpanKind.SERVER,
            attributes=_attributes(record),
            start_time=_nanoseconds(record, 0.0),
        )
        if record.error_code is not None:
            span.set_attribute("error.type", record.error_code)
            if record.status < 400 or record.status >= 500:
                span.set_status(StatusCode.ERROR, record.error_code)
        for answer in record.answers:
            self._add_parts(record, answer, span)
        span.end(_nanoseconds(record, record.seconds))

    def close(self) -> None:
        """Send the spans that have not been sent yet."""
        self._provider.shutdown()

    def _add_parts(self, record: RequestRecord, answer: AnswerFigures, span: Span) -> None:
        """Add child spans of `span` for the parts of an answer's time, one after another. The part `prefill` ends with
        the first token.
        """
        breakdown = answer.timings().breakdown
        if breakdown is None:
            return
        context = set_span_in_context(span)
        end = 0.0
        for name, seconds in asdict(breakdown).items():
            child = self._tracer.start_span(name, context, start_time=_nanoseconds(record, end))
            end += seconds
            child.end(_nanoseconds(record, end))


def _name(record: RequestRecord) -> str:
    if record.answers:
        return f"{_operation(record)} {record.model}"
    return f"{record.scope['method']} {record.path}".strip()


def _operation(record: RequestRecord) -> str:
    return _OPERATIONS.get(record.path.removeprefix("/v1").removeprefix("/v2"), "chat")


def _attributes(record: RequestRecord) -> Mapping[str, AttributeValue]:
    """Return the attributes of a request's span, named after OpenTelemetry's conventions for HTTP
    (https://opentelemetry.io/docs/specs/semconv/http/http-spans/) and for generative AI
    (https://github.com/open-telemetry/semantic-conventions-genai).

    The path of a request without a route is left out.
    """
    attributes: dict[str, AttributeValue] = {
        "http.request.method": record.scope["method"],
        "http.response.status_code": record.status,
        "url.scheme": record.scope["scheme"],
        "genai_server.request.id": record.request_id,
    }
    if record.path:
        attributes |= {"http.route": record.path, "url.path": record.scope["path"]}
    if record.answers:
        attributes |= _of_request(record)
        usage = record.usage
        attributes |= {
            "gen_ai.operation.name": _operation(record),
            "gen_ai.provider.name": "genai-server",
            "gen_ai.request.model": record.model,
            "gen_ai.response.model": record.model,
            "gen_ai.response.id": record.request_id,
            "gen_ai.response.finish_reasons": [answer.outcome for answer in record.answers],
            "gen_ai.usage.input_tokens": usage.prompt,
            "gen_ai.usage.output_tokens": usage.completion,
            "gen_ai.usage.cache_read.input_tokens": usage.cached,
            "gen_ai.usage.reasoning.output_tokens": usage.reasoning,
            "genai_server.device": record.device,
        }
        ttft = record.answers[0].timings().ttft
        if record.is_streamed and ttft is not None:
            attributes["gen_ai.response.time_to_first_chunk"] = ttft
    return attributes


def _of_request(record: RequestRecord) -> Mapping[str, AttributeValue]:
    """Return the attributes of a request's span that tell its sampling parameters, without those that had no effect."""
    attributes: dict[str, AttributeValue] = {"gen_ai.request.stream": record.is_streamed}
    if record.num_per_prompt > 1:
        attributes["gen_ai.request.choice.count"] = record.num_per_prompt
    if record.max_tokens is not None:
        attributes["gen_ai.request.max_tokens"] = record.max_tokens
    sampling = record.asked
    if sampling is None:
        return attributes
    attributes["gen_ai.request.temperature"] = sampling.temperature
    if sampling.temperature > 0:
        attributes["gen_ai.request.top_p"] = sampling.top_p
        if sampling.top_k:
            attributes["gen_ai.request.top_k"] = sampling.top_k
        if sampling.seed is not None:
            attributes["gen_ai.request.seed"] = sampling.seed
    for name in ("frequency_penalty", "presence_penalty"):
        if value := getattr(sampling, name):
            attributes[f"gen_ai.request.{name}"] = value
    return attributes


def _nanoseconds(record: RequestRecord, seconds: float) -> int:
    """Return the time `seconds` after the request's arrival, in nanoseconds since 1970, as spans have it."""
    return int((record.began_at + seconds) * _NANO)
