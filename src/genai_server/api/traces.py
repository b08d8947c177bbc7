"""Requests as spans of OpenTelemetry, sent in the background; with the extra `otel` only."""

from collections.abc import Mapping

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue
from starlette.datastructures import Headers

from genai_server import __version__
from genai_server.api.account import Account
from genai_server.api.answer import Answer

_NANO = 1_000_000_000
_OPERATIONS = {"/v1/completions": "text_completion", "/completions": "text_completion"}


class Traces:
    """A span for each request that asks for something, under the client's own if it names one (`traceparent`), with the
    phases of each of its answers as children. Of what was said it tells nothing.

    `endpoint` takes OTLP over HTTP. What else can be set, OpenTelemetry reads from its own variables, `OTEL_…`.
    """

    def __init__(self, endpoint: str) -> None:
        resource = Resource.create({"service.name": "genai-server", "service.version": __version__})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint)))
        self._tracer = self._provider.get_tracer("genai_server", __version__)
        self._propagator = TraceContextTextMapPropagator()

    def observe(self, account: Account) -> None:
        """Tell of a request that has ended."""
        if account.is_look:
            return
        headers = Headers(scope=account.scope)
        carried = {name: headers[name] for name in self._propagator.fields if name in headers}
        span = self._tracer.start_span(
            _name(account),
            context=self._propagator.extract(carried),
            kind=SpanKind.SERVER,
            attributes=_attributes(account),
            start_time=_nanoseconds(account, account.began),
        )
        if account.error_code is not None:
            span.set_attribute("error.type", account.error_code)
            if account.status < 400 or account.status >= 500:
                span.set_status(StatusCode.ERROR, account.error_code)
        for answer in account.answers:
            self._tell_phases(account, answer, span)
        span.end(_nanoseconds(account, account.began + account.seconds))

    def close(self) -> None:
        """Send what has not been sent."""
        self._provider.shutdown()

    def _tell_phases(self, account: Account, answer: Answer, span: Span) -> None:
        """The engine tells how long its phases took; prefill ends with the first token."""
        phases = answer.phases
        first = answer.first_token
        if first is None:
            first = account.began + account.seconds
        ends = (
            ("queue", phases.queue, first - phases.prefill),
            ("prefill", phases.prefill, first),
            ("decode", phases.decode, first + phases.decode),
        )
        context = set_span_in_context(span)
        for name, seconds, end in ends:
            child = self._tracer.start_span(name, context, start_time=_nanoseconds(account, end - seconds))
            child.end(_nanoseconds(account, end))


def _name(account: Account) -> str:
    if account.answers:
        return f"{_operation(account)} {account.model}"
    return f"{account.scope['method']} {account.path}".strip()


def _operation(account: Account) -> str:
    return _OPERATIONS.get(account.path, "chat")


def _attributes(account: Account) -> Mapping[str, AttributeValue]:
    """After https://opentelemetry.io/docs/specs/semconv/http/http-spans/ and, where there are answers,
    https://github.com/open-telemetry/semantic-conventions-genai. A path that no route knows is not told.
    """
    found: dict[str, AttributeValue] = {
        "http.request.method": account.scope["method"],
        "http.response.status_code": account.status,
        "url.scheme": account.scope["scheme"],
        "genai_server.request.id": account.request_id,
    }
    if account.path:
        found |= {"http.route": account.path, "url.path": account.scope["path"]}
    if account.answers:
        found |= _of_request(account)
        usage = account.usage
        found |= {
            "gen_ai.operation.name": _operation(account),
            "gen_ai.provider.name": "genai-server",
            "gen_ai.request.model": account.model,
            "gen_ai.response.model": account.model,
            "gen_ai.response.id": account.request_id,
            "gen_ai.response.finish_reasons": [answer.outcome for answer in account.answers],
            "gen_ai.usage.input_tokens": usage.prompt,
            "gen_ai.usage.output_tokens": usage.completion,
            "gen_ai.usage.cache_read.input_tokens": usage.cached,
            "gen_ai.usage.reasoning.output_tokens": usage.reasoning,
            "genai_server.device": account.device,
        }
        ttft = account.answers[0].timings().ttft
        if account.is_streamed and ttft is not None:
            found["gen_ai.response.time_to_first_chunk"] = ttft
    return found


def _of_request(account: Account) -> Mapping[str, AttributeValue]:
    """What was asked for; what has no effect is left out."""
    found: dict[str, AttributeValue] = {"gen_ai.request.stream": account.is_streamed}
    if account.num_per_prompt > 1:
        found["gen_ai.request.choice.count"] = account.num_per_prompt
    if account.max_tokens is not None:
        found["gen_ai.request.max_tokens"] = account.max_tokens
    asked = account.asked
    if asked is None:
        return found
    found["gen_ai.request.temperature"] = asked.temperature
    if asked.temperature > 0:
        found["gen_ai.request.top_p"] = asked.top_p
        if asked.top_k:
            found["gen_ai.request.top_k"] = asked.top_k
        if asked.seed is not None:
            found["gen_ai.request.seed"] = asked.seed
    for name in ("frequency_penalty", "presence_penalty"):
        if value := getattr(asked, name):
            found[f"gen_ai.request.{name}"] = value
    return found


def _nanoseconds(account: Account, moment: float) -> int:
    """A time of the clock as nanoseconds since 1970."""
    return int((account.began_at + moment - account.began) * _NANO)
