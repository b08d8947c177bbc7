"""Spans of requests as a collector receives them: a small one that speaks OTLP over HTTP."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.attributes import error_attributes, http_attributes, url_attributes

from genai_server.cli.serve.loaders import load_traces
from genai_server.config.settings import Settings
from genai_server.errors import ConfigurationError
from tests.running_server import RunningServer, body, run_server, wait_until

_TRACE, _PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector:
    """The spans received, in the order of their ends."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.resources: list[dict[str, Any]] = []

    def take(self, data: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(data).resource_spans:
            self.resources.append(_attributes(resource.resource.attributes))
            for scope in resource.scope_spans:
                self.spans += scope.spans

    def request(self, name: str) -> Span:
        """The single span of a request."""
        wait_until(lambda: bool(self._named(name)))
        (span,) = self._named(name)
        return span

    def children(self, parent: Span) -> list[Span]:
        return [span for span in self.spans if span.parent_span_id == parent.span_id]

    def _named(self, name: str) -> list[Span]:
        return [span for span in self.spans if _attributes(span.attributes).get("genai_server.request.id") == name]


def _attributes(pairs: Any) -> dict[str, Any]:
    def value(of: Any) -> Any:
        kind = of.WhichOneof("value")
        return [value(each) for each in of.array_value.values] if kind == "array_value" else getattr(of, kind)

    return {pair.key: value(pair.value) for pair in pairs}


@contextmanager
def _collecting() -> Iterator[tuple[Collector, str]]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.headers["content-type"] == "application/x-protobuf"
            collector.take(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        try:
            yield collector, f"http://127.0.0.1:{http.server_port}/v1/traces"
        finally:
            http.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, Collector]]:
    with _collecting() as (collector, url):
        settings = {"GENAI_OTLP_ENDPOINT": url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
        folder = tmp_path_factory.mktemp("traced")
        with run_server(folder, "--device", "scripted", settings=settings) as server:
            yield server, collector


def _post(server: RunningServer, name: str, content: str, **fields: Any) -> int:
    headers = {"x-request-id": name, "traceparent": f"00-{_TRACE}-{_PARENT}-01", "tracestate": "vendor=1"}
    path = "/v1/chat/completions"
    return server.client.post(path, json=body(content, **fields), headers=headers).status_code


def _spanned(traced: tuple[RunningServer, Collector], name: str, content: str, **fields: Any) -> tuple[Span, Any]:
    """The span of a request, and its attributes."""
    _post(traced[0], name, content, **fields)
    span = traced[1].request(name)
    return span, _attributes(span.attributes)


def test_a_request_is_a_span_under_the_clients_own_without_content(traced: tuple[RunningServer, Collector]) -> None:
    span, found = _spanned(traced, "whole", "say hello")
    assert (span.trace_id.hex(), span.parent_span_id.hex(), span.trace_state) == (_TRACE, _PARENT, "vendor=1")
    assert (span.name, span.kind) == ("chat demo", Span.SPAN_KIND_SERVER)
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "demo",
        "gen_ai.response.model": "demo",
        "gen_ai.usage.input_tokens": len("say hello\n\x04"),
        "gen_ai.usage.output_tokens": len("hello"),
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.request.stream": False,
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "url.scheme": "http",
        "url.path": "/v1/chat/completions",
    }
    assert expected.items() <= found.items()
    left_out = {"gen_ai.request.choice.count", "gen_ai.request.seed", "gen_ai.response.time_to_first_chunk"}
    assert not left_out & found.keys()
    assert span.status.code == Status.STATUS_CODE_UNSET
    assert traced[1].resources[0]["service.name"] == "genai-server"
    assert "hello" not in str(traced[1].spans)


def test_span_has_the_parameters_by_the_names_of_the_conventions(traced: tuple[RunningServer, Collector]) -> None:
    fields = {"max_tokens": 7, "temperature": 0.5, "top_k": 3, "seed": 11}
    fields |= {"presence_penalty": 0.25, "frequency_penalty": 0.5}
    _, found = _spanned(traced, "asked", "count 9", stream=True, n=2, **fields)
    asked = {name.removeprefix("gen_ai.request."): value for name, value in found.items() if ".request." in name}
    assert (fields | {"choice.count": 2, "stream": True}).items() <= asked.items()
    assert 0 < found["gen_ai.response.time_to_first_chunk"] < 60
    modules = (error_attributes, gen_ai_attributes, http_attributes, url_attributes)
    known = {value for module in modules for value in vars(module).values() if isinstance(value, str)}
    assert found.keys() - known == {"genai_server.request.id", "genai_server.device"}


def test_its_phases_are_its_children_one_after_another(traced: tuple[RunningServer, Collector]) -> None:
    collector = traced[1]
    span, _ = _spanned(traced, "phases", "count 3; delay 0.02", stream=True)
    children = collector.children(span)  # ended, and so sent, in this order
    names = ["receive", "load", "prepare", "queue", "prefill", "decode", "deliver"]
    assert [child.name for child in children] == names
    assert children[0].start_time_unix_nano == span.start_time_unix_nano
    for before, after in pairwise(children):
        assert before.end_time_unix_nano == after.start_time_unix_nano
    assert children[-1].end_time_unix_nano <= span.end_time_unix_nano
    decode = children[names.index("decode")]
    # Nanoseconds since 1970 are rounded to the 16 digits of a float.
    least = 20_000_000 * (len("1, 2, 3") - 1) - 2_000
    assert decode.end_time_unix_nano - decode.start_time_unix_nano >= least
    assert {child.trace_id for child in children} == {span.trace_id}
    assert len(collector.children(_spanned(traced, "several", "say a", n=2)[0])) == 14


def test_trace_starts_without_a_clients_trace(traced: tuple[RunningServer, Collector]) -> None:
    traced[0].client.post("/v1/chat", json=body("say a"), headers={"x-request-id": "alone"}).raise_for_status()
    span = traced[1].request("alone")
    assert (span.parent_span_id, span.trace_id.hex() == _TRACE) == (b"", False)


def test_a_failure_after_the_headers_is_an_error_and_a_refusal_is_not(traced: tuple[RunningServer, Collector]) -> None:
    span, found = _spanned(traced, "refused", "say a", strem=True)
    assert (span.name, found["error.type"]) == ("POST /v1/chat/completions", "unknown_parameter")
    assert not [name for name in found if name.startswith("gen_ai.")]
    assert span.status.code == Status.STATUS_CODE_UNSET  # for client errors in a server's span
    assert traced[1].children(span) == []
    span, _ = _spanned(traced, "broken", "count 9; fail at 2", stream=True)
    assert (span.status.code, span.status.message) == (Status.STATUS_CODE_ERROR, "runner_failed")


def test_pending_spans_are_exported_at_shutdown(own_folder: Path) -> None:
    with _collecting() as (collector, url):
        settings = {"GENAI_OTLP_ENDPOINT": url, "OTEL_BSP_SCHEDULE_DELAY": "60000"}
        with run_server(own_folder, "--device", "scripted", settings=settings) as server:
            assert _post(server, "last", "say a") == 200
            assert collector.spans == []
        assert collector.request("last").name == "chat demo"


def test_missing_otel_extra_ends_the_start_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "genai_server.http.telemetry.traces", None)
    with pytest.raises(ConfigurationError, match=r"install .*otel"):
        load_traces(Settings.model_validate({"otlp_endpoint": "http://127.0.0.1:4318/v1/traces"}))
