"""docs/guides/reverse-proxy.md: the configurations of nginx and Caddy, run in front of a server."""

import json
import re
from collections.abc import Iterator
from socket import create_connection
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from genai_server.config.sources import load_settings
from tests.guides.proxies import PAGE, Proxy, run_proxy
from tests.running_server import RunningServer, body, run_server, wait_until

KEY, ADMIN = "client-0123456789abcdef", "admin-0123456789abcdef"
BELOW = "/llm"
ENDLESS = "count 900; delay 0.1"
# Fits into any proxy's buffer.
SMALL = "count 7; delay 0.5"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server for one request at a time, so that a second one waits without a byte."""
    settings = {"GENAI_API_KEYS": f"me:{KEY}", "GENAI_ADMIN_API_KEY": ADMIN}
    options = ["--device", "scripted", "--model-name", "onnx-genai", "--max-batch-size", "1", "--log-level", "debug"]
    options += ["--max-body-bytes", "2000000", "--max-media-body-bytes", "2000000"]
    given = re.findall(r"--forwarded-allow-ips \S+", PAGE.text)[0].split()
    with run_server(tmp_path_factory.mktemp("server"), *options, *given, settings=settings) as server:
        server.client.headers["authorization"] = f"Bearer {ADMIN}"
        yield server


@pytest.fixture(scope="module", params=["nginx", "caddy"])
def proxy(
    request: pytest.FixtureRequest, server: RunningServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Proxy]:
    address = server.url.removeprefix("http://")
    with run_proxy(request.param, address, tmp_path_factory.mktemp(request.param)) as proxy:
        yield proxy


def _running(server: RunningServer) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.client.get("/v1/requests").json()["data"]
    return found


def _cancel_all(server: RunningServer) -> None:
    for request in _running(server):
        server.client.post(f"/v1/requests/{request['unique_id']}/cancel")
    wait_until(lambda: not _running(server))


@pytest.mark.parametrize(("path", "below"), [("/v1/chat/stream", ""), ("/api/chat", BELOW)])
def test_tokens_arrive_while_the_answer_is_made(server: RunningServer, proxy: Proxy, path: str, below: str) -> None:
    fields = {"model": "onnx-genai"} if path == "/api/chat" else {}
    with proxy.client(KEY) as client, client.stream("POST", f"{below}{path}", json=body(SMALL, **fields)) as response:
        assert response.status_code == 200
        lines = response.iter_lines()
        assert json.loads(next(lines).removeprefix("data: "))
        # Passed on while the answer is made, whose end this cancellation brings.
        assert len(_running(server)) == 1
        _cancel_all(server)
        last = [line for line in lines if line][-1]
        assert json.loads(last.removeprefix("data: "))["done"] is True


def test_client_that_leaves_a_stream_frees_its_place(server: RunningServer, proxy: Proxy) -> None:
    with proxy.client(KEY) as client, client.stream("POST", "/v1/chat/stream", json=body(ENDLESS)) as response:
        lines = response.iter_lines()
        next(lines)
        assert len(_running(server)) == 1
    wait_until(lambda: not _running(server))


def test_client_that_leaves_before_its_answer_frees_its_place(server: RunningServer, proxy: Proxy) -> None:
    """Nothing is sent to it whose failure the proxy could notice."""
    sent = json.dumps(body(ENDLESS)).encode()
    head = {"host": f"localhost:{proxy.port}", "authorization": f"Bearer {KEY}", "content-type": "application/json"}
    lines = ["POST /v1/chat HTTP/1.1", *(f"{name}: {value}" for name, value in head.items())]
    lines += [f"content-length: {len(sent)}", "", ""]
    with (
        create_connection(("127.0.0.1", proxy.port)) as plain,
        proxy.tls.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        connection.sendall("\r\n".join(lines).encode() + sent)
        wait_until(lambda: len(_running(server)) == 1)
    wait_until(lambda: not _running(server))


def test_idle_stream_stays_open(server: RunningServer, proxy: Proxy) -> None:
    """It waits for its turn without a byte, for Ollama's streams have no comments."""
    fields = {"model": "onnx-genai"}
    with (
        proxy.client(KEY) as client,
        client.stream("POST", "/v1/chat/stream", json=body(ENDLESS)) as running,
        client.stream("POST", "/api/chat", json=body("say done", **fields)) as waiting,
    ):
        lines = running.iter_lines()
        next(lines)
        assert waiting.status_code == 200
        assert [request["phase"] for request in _running(server)] == ["decode", "queued"]
        first = next(request for request in _running(server) if request["phase"] == "decode")
        server.client.post(f"/v1/requests/{first['unique_id']}/cancel")
        texts = [json.loads(line)["message"]["content"] for line in waiting.iter_lines()]
        assert "".join(texts) == "done"


def _ask(proxy: Proxy, path: str, **options: Any) -> dict[str, Any]:
    """The last event of a turn over a WebSocket."""
    headers = {"authorization": f"Bearer {KEY}"}
    url = f"{proxy.url.replace('https', 'wss')}{path}"
    with connect(url, ssl=proxy.tls, additional_headers=headers, proxy=None, open_timeout=90, **options) as connection:
        connection.send(json.dumps({"type": "response.create", "model": "onnx-genai", "input": "say hello"}))
        while (event := json.loads(connection.recv(timeout=90)))["type"] != "response.completed":
            assert event["type"].startswith("response."), event
        response: dict[str, Any] = event["response"]
        return response


@pytest.mark.parametrize("below", ["", BELOW])
def test_websocket_has_turns(proxy: Proxy, below: str) -> None:
    assert _ask(proxy, f"{below}/v1/responses")["output"][0]["content"][0]["text"] == "hello"


def test_own_page_may_open_a_websocket_and_others_may_not(proxy: Proxy) -> None:
    """The server compares the page's origin with the Host header, so the proxy must pass that on."""
    assert _ask(proxy, "/v1/responses", origin=proxy.url)["status"] == "completed"
    with pytest.raises(InvalidStatus) as refused:
        _ask(proxy, "/v1/responses", origin="https://elsewhere.example")
    assert refused.value.response.status_code == 403


def test_log_has_the_clients_address_and_no_claimed_one(server: RunningServer, proxy: Proxy) -> None:
    for number, claimed in enumerate(("", "203.0.113.7")):
        name = f"{proxy.name}-{number}"
        headers = {"x-request-id": name} | ({"x-forwarded-for": claimed} if claimed else {})
        with proxy.client(KEY, address="127.0.0.2") as client:
            assert client.post("/v1/chat", json=body("say hello"), headers=headers).status_code == 200
        wait_until(lambda name=name: name in server.log())  # type: ignore[misc]
        (line,) = [line for line in server.log().splitlines() if name in line]
        assert "127.0.0.2" in line
        assert "203.0.113.7" not in line


def test_admin_calls_need_the_admin_key(proxy: Proxy) -> None:
    for key, status in ((KEY, 403), (ADMIN, 200), ("", 401)):
        with proxy.client(key) as client:
            assert client.get("/v1/requests").status_code == status


def test_large_body_is_the_servers_to_refuse(proxy: Proxy) -> None:
    """nginx alone would refuse more than 1 MB, in HTML."""
    with proxy.client(KEY) as client:
        refused = client.post("/v1/chat", json=body("x" * 8_000_000))
        assert refused.status_code == 400, refused.text
        assert refused.json()["error"]["code"] == "body_too_large"


@pytest.mark.parametrize("below", ["", BELOW])
def test_page_and_its_files_are_found(proxy: Proxy, below: str) -> None:
    with proxy.client() as client:
        if below:
            assert client.get(below).headers["location"].endswith(f"{below}/")
        page = client.get(f"{below}/", headers={"accept": "text/html"})
        files = re.findall(r'(?:href|src)="([^"#:]+)"', page.text)
        assert len(files) > 3
        assert {client.get(str(page.url.join(file))).status_code for file in files} == {200}


@pytest.mark.parametrize(("path", "below"), [("/ui", ""), ("/ui", BELOW), ("/api/tags/", BELOW)])
def test_redirect_leads_through_the_proxy(proxy: Proxy, path: str, below: str) -> None:
    other = path.removesuffix("/") if path.endswith("/") else f"{path}/"
    with proxy.client(KEY) as client:
        redirect = client.get(f"{below}{path}").next_request
        assert redirect is not None
        assert str(redirect.url) == f"{proxy.url}{below}{other}"


def test_nginx_waits_longer_than_any_answer_takes() -> None:
    (seconds,) = re.findall(r"proxy_read_timeout (\d+)s;", PAGE.code("nginx")[0])
    assert int(seconds) > load_settings(environ={}, dotenv=None).request_timeout
