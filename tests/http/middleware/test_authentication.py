"""Access to the API and to the admin endpoints."""

import asyncio
import signal
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import psutil
import pytest
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from genai_server.http.api_keys import Access, ApiKey, ApiKeys, hash_key, line_of
from genai_server.http.middleware.authentication import Authentication, holder_of, host_name
from genai_server.http.rate_limit import RateLimits
from genai_server.http.request_state import OnBehalf, Receipt, request_state, start_request, with_receipt
from tests.running_server import RunningServer, body, run_server, wait_until
from tests.server_here import module_server, run_here

PATH = "/v1/admin/runtime_options"
ALICE, BOB, ADMIN = "alice-0123456789abcdef", "bob-0123456789abcdef", "admin-0123456789abcdef"


guarded = module_server(GENAI_DEVICE="scripted", GENAI_ADMIN_API_KEY=ADMIN)


def test_operators_need_the_key_or_a_local_program(guarded: RunningServer, scripted: RunningServer) -> None:
    assert guarded.client.get(PATH, headers={**bearer(ADMIN), "x-forwarded-for": "10.0.0.1"}).status_code == 200
    assert scripted.client.get(PATH).status_code == 200
    assert scripted.client.get(PATH, headers={"origin": scripted.url}).status_code == 200


@pytest.mark.parametrize("authorization", ["", "Bearer wrong", ADMIN, f"Basic {ADMIN}", f"Bearer {ADMIN}é"])
def test_no_or_a_wrong_key_is_refused_with_the_remedy(guarded: RunningServer, authorization: str) -> None:
    headers = {b"authorization": authorization.encode()}
    response = guarded.client.get(PATH, headers=headers)
    assert response.status_code == 403
    assert "GENAI_ADMIN_API_KEY" in response.json()["error"]["message"]
    assert ADMIN not in response.text


@pytest.mark.parametrize(
    ("header", "value", "says"),
    [
        ("x-forwarded-for", "10.0.0.1", "forwarded"),
        ("forwarded", "for=10.0.0.1", "forwarded"),
        ("x-real-ip", "10.0.0.1", "forwarded"),
        ("origin", "https://evil.example", "Origin"),
        ("origin", "null", "Origin"),
        ("origin", "http://localhost:1", "Origin"),
        ("origin", "http://[", "Origin"),
        ("x-forwarded-server", "proxy", "forwarded"),
        ("cf-connecting-ip", "10.0.0.1", "forwarded"),
    ],
)
def test_proxies_and_web_pages_need_a_key(scripted: RunningServer, header: str, value: str, says: str) -> None:
    response = scripted.client.get(PATH, headers={header: value})
    assert response.status_code == 403
    assert says in response.json()["error"]["message"]
    assert "GENAI_ADMIN_API_KEY" in response.json()["error"]["message"]


OTHER_NAMES = [
    *("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "["),
    *("localhost?evil.example", "evil.example:80@localhost", "[::1]evil.example"),
]


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("localhost", "localhost"),
        ("LOCALHOST:1", "localhost"),
        ("my_service-1.example:65535", "my_service-1.example"),
        ("127.0.0.1:08002", "127.0.0.1"),
        ("[::1]", "::1"),
        ("[::1]:8002", "::1"),
        ("[0:0:0:0:0:0:0:1]:8002", "::1"),
        ("%6Cocalhost", "%6cocalhost"),
        ("localhost,evil.example", "localhost,evil.example"),
        *(
            (header, None)
            for header in (
                *("", " ", ":", ":80", "localhost:", "localhost:x", "localhost:-1", "localhost:65536", "localhost:1:2"),
                *("localhost:999999", "localhost: 80", "localhost:８０", "localhost:80 ", " localhost", "local\thost"),
                *("localhost?evil.example", "localhost#evil.example", "localhost/evil.example", "localhost\\evil"),
                *("evil.example@localhost", "evil.example:80@localhost", "evil.example\\@localhost", "@localhost"),
                *("localhost evil.example", "localhost\n", "localhost\x00", "http://localhost", "//localhost", "löcal"),
                *("[::1]evil.example", "evil.example[::1]", "[::1]:", "[::1]:x", "[::1", "::1]", "::1", "[]", "[", "]"),
                *("[::1%25lo]", "[::1%lo]", "[127.0.0.1]", "[localhost]", "[v1.x]", "[::1]]", "[[::1]]", "[:::1]"),
                "%6",
            )
        ),
    ],
)
def test_host_headers_are_parsed_by_their_grammar(header: str, name: str | None) -> None:
    assert host_name(header) == name


@pytest.mark.parametrize("host", OTHER_NAMES)
def test_request_with_another_host_name_is_refused_without_keys(scripted: RunningServer, host: str) -> None:
    for path in ("/v1/models", PATH):
        response = scripted.client.get(path, headers={"host": host})
        assert (response.status_code, "GENAI_INSECURE" in response.text) == (401, True)
    healthz = scripted.client.get("/healthz", headers={"host": host})
    assert set(healthz.json()) == {"status", "devices"}  # the public fields
    for name in ("localhost", "LOCALHOST:1", "127.0.0.1", "127.8.0.1:80", "[::1]", "[::1]:8002"):
        assert scripted.client.get("/v1/models", headers={"host": name}).status_code == 200


def test_insecure_server_accepts_any_host_except_for_operators(tmp_path: Path) -> None:
    with run_here(tmp_path, "--device", "scripted", "--insecure") as server:
        for host in OTHER_NAMES:
            found = {path: server.client.get(path, headers={"host": host}) for path in ("/v1/models", "/nowhere", PATH)}
            assert [response.status_code for response in found.values()] == [200, 404, 403]
            assert "the Host header names another machine" in found[PATH].text


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", None])
def test_json_content_type_is_required_without_a_key(scripted: RunningServer, kind: str | None) -> None:
    headers = {"content-type": kind} if kind else {}
    assert scripted.client.post(PATH, content='{"terminate_session": "1"}', headers=headers).status_code == 403
    assert scripted.chat("say x").status_code == 200


LOAD_TOOLS = ["/stop_profile", "/reset_prefix_cache", "/v1/admin/reset_prefix_cache"]


@pytest.mark.parametrize("path", LOAD_TOOLS)
def test_load_tools_send_no_body_which_pages_cannot(scripted: RunningServer, guarded: RunningServer, path: str) -> None:
    for headers in ({}, {"sec-fetch-site": "none"}):
        response = scripted.client.post(path, headers=headers)
        assert (response.status_code, list(response.json()["devices"])) == (200, ["scripted:0", "scripted:1"])
    for name, value in (
        *(("origin", value) for value in ("https://evil.example", "null", scripted.url)),
        *(("sec-fetch-site", value) for value in ("cross-site", "same-site", "same-origin")),
        ("content-type", "text/plain"),
        ("x-forwarded-for", "10.0.0.1"),
    ):
        assert scripted.client.post(path, headers={name: value}).status_code == 403, (name, value)
    assert guarded.client.post(path).status_code == 403
    assert guarded.client.post(path, headers=bearer(ADMIN)).status_code == 200


def test_no_body_needs_no_content_type_but_a_body_does(scripted: RunningServer) -> None:
    assert scripted.client.post("/stop_profile", content=b"x").status_code == 403
    assert scripted.client.post("/stop_profile", content=iter([b"x"])).status_code == 403
    assert scripted.client.post(PATH).status_code == 400


def test_public_server_refuses_operators_without_a_key(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("open")
    with run_here(folder, "--device", "scripted", "--host", "0.0.0.0", "--insecure") as server:
        response = server.client.get(PATH)
        assert response.status_code == 403
        assert "loopback" in response.json()["error"]["message"]


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with a key in the settings, one in a file, and one for the operator."""
    folder = tmp_path_factory.mktemp("locked")
    (folder / "keys").write_text(f"# clients\n\n{line_of('bob', BOB)}  # since May\n")
    settings = {
        "GENAI_DEVICE": "scripted",
        "GENAI_API_KEYS": f"alice:{ALICE}",
        "GENAI_API_KEY_FILE": str(folder / "keys"),
        "GENAI_ADMIN_API_KEY": ADMIN,
        "GENAI_CORS_ORIGINS": "https://app.example",
        "HOST": "0.0.0.0",
    }
    with run_here(folder, settings=settings) as server:
        yield server


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize("headers", [bearer(ALICE), {"authorization": f"bearer  {BOB}"}, {"x-api-key": ALICE}])
def test_a_key_of_the_settings_or_of_the_file_opens(locked: RunningServer, headers: dict[str, str]) -> None:
    assert locked.client.post("/v1/chat", json=body("say x"), headers=headers).json()["content"] == "x"


@pytest.mark.parametrize(
    ("name", "key"),
    [
        *[("x-other", ALICE), ("authorization", f"Basic {ALICE}"), ("authorization", f"Bearer {ALICE[:-1]}")],
        *[("authorization", f"Bearer {ALICE}x"), ("authorization", ALICE), ("x-api-key", "é" * 20)],
    ],
)
@pytest.mark.parametrize("path", ["/v1/models", "/nowhere", "/healthz/", PATH])
def test_no_key_or_a_wrong_one_is_a_401(locked: RunningServer, path: str, name: str, key: str) -> None:
    response = locked.client.get(path, headers={name.encode(): key.encode()})
    assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
    error = response.json()["error"]
    assert (error["code"], error["type"]) == ("invalid_api_key", "invalid_request_error")
    assert ALICE[:-1] not in response.text


def test_the_real_clients_send_their_keys_and_know_the_errors(locked: RunningServer) -> None:
    with openai.OpenAI(base_url=f"{locked.url}/v1", api_key=ALICE) as client:
        assert client.models.list().data[0].id == "demo"
    with (
        openai.OpenAI(base_url=f"{locked.url}/v1", api_key="wrong") as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.models.list()
    asked: Any = {"model": "demo", "max_tokens": 9, "messages": [{"role": "user", "content": "say x"}]}
    with anthropic.Anthropic(base_url=locked.url, api_key=BOB) as speaker:
        assert speaker.messages.create(**asked).content[0].text == "x"
    with (
        anthropic.Anthropic(base_url=locked.url, api_key="wrong") as speaker,
        pytest.raises(anthropic.AuthenticationError),
    ):
        speaker.messages.create(**asked)


def test_strangers_see_health_without_details(locked: RunningServer) -> None:
    assert locked.client.get("/readyz").status_code == 200
    assert locked.health() == {"status": "ok", "devices": {"scripted": {"state": "ready"}}}
    known = locked.client.get("/healthz", headers=bearer(BOB)).json()
    assert known["model_dir"]
    assert known["devices"]["scripted"]["pid"]


# A server with an API key and no admin key, whose device fails at the first crash of its engine.
mortal = module_server("--device", "scripted", "--api-keys", ALICE, "--max-restarts", "0")


def test_strangers_see_that_a_device_has_failed_but_not_why(mortal: RunningServer) -> None:
    mortal.client.post("/v1/chat", json=body("crash at 0"), headers=bearer(ALICE))
    wait_until(lambda: mortal.device("scripted")["state"] == "failed")
    ready = mortal.client.get("/readyz")
    expected = {"status": "not ready", "reason": "device scripted is failed", "devices": {"scripted": "failed"}}
    assert (ready.status_code, ready.json()) == (503, expected)
    known = mortal.client.get("/readyz", headers=bearer(ALICE)).json()
    assert "exit status 70" in known["reason"]
    assert "exit status 70" in known["devices"]["scripted"]


def test_admin_key_opens_everything_and_other_keys_do_not(locked: RunningServer) -> None:
    assert locked.client.get(PATH, headers=bearer(ADMIN)).status_code == 200
    assert locked.client.get("/v1/models", headers=bearer(ADMIN)).status_code == 200
    assert locked.client.get(PATH, headers=bearer(ALICE)).status_code == 403


def test_admin_endpoints_are_closed_without_an_admin_key(mortal: RunningServer) -> None:
    response = mortal.client.get(PATH, headers=bearer(ALICE))
    assert response.status_code == 403
    assert "GENAI_ADMIN_API_KEY" in response.json()["error"]["message"]
    assert mortal.client.get(PATH).status_code == 401


def test_a_listed_origins_page_may_read_answers_and_errors(locked: RunningServer) -> None:
    asked = {"origin": "https://app.example", "access-control-request-method": "POST"}
    preflight = locked.client.options("/v1/chat", headers={**asked, "access-control-request-headers": "authorization"})
    assert preflight.status_code == 200
    for response in (preflight, locked.client.get("/v1/models", headers=asked)):
        assert response.headers["access-control-allow-origin"] == "https://app.example"
    asked["origin"] = "https://app.example.evil.example"
    refused = locked.client.options("/v1/chat", headers=asked)
    assert "access-control-allow-origin" not in refused.headers


@pytest.fixture(scope="module", params=[1, pytest.param(2, marks=pytest.mark.slow)], ids=["one", "workers"])
def keyed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RunningServer, int]]:
    """A server of one or two API processes, with a key of Alice in its file; tests leave it there."""
    folder = tmp_path_factory.mktemp("keyed")
    (folder / "keys").write_text(line_of("alice", ALICE))
    settings = {"GENAI_DEVICE": "scripted", "GENAI_API_KEY_FILE": str(folder / "keys"), "WORKERS": str(request.param)}
    with run_server(folder, settings=settings) as server:
        wait_until(lambda: server.log().count("Application startup complete") == request.param)
        yield server, request.param


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGHUP")
def test_the_file_of_keys_is_read_again_on_sighup(keyed: tuple[RunningServer, int]) -> None:
    server, _ = keyed

    def statuses() -> set[tuple[int, int]]:
        """The status codes for Alice and Bob over several connections, and so of several processes."""
        found = set()
        for _ in range(8):
            try:
                with httpx.Client(base_url=server.url, timeout=90) as client:
                    alice, bob = (client.get("/v1/models", headers=bearer(key)).status_code for key in (ALICE, BOB))
            except httpx.TransportError:
                return set()
            found.add((alice, bob))
        return found

    def becomes(expected: tuple[int, int]) -> bool:
        return statuses() == {expected}

    assert statuses() == {(200, 401)}
    processes = psutil.Process(server.process.pid).children(recursive=True)
    for name, key, expected in (("bob", BOB, (401, 200)), ("alice", ALICE, (200, 401))):
        (server.folder / "keys").write_text(line_of(name, key))
        server.process.send_signal(signal.SIGHUP)
        wait_until(partial(becomes, expected))
    # No process was restarted: requests continue.
    assert psutil.Process(server.process.pid).children(recursive=True) == processes


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGHUP")
def test_a_wrong_file_of_keys_leaves_them_as_they_are(keyed: tuple[RunningServer, int]) -> None:
    server, workers = keyed
    (server.folder / "keys").write_text(f"alice {ALICE}")
    server.process.send_signal(signal.SIGHUP)
    wait_until(lambda: server.log().count("the API keys are unchanged") == workers)
    assert "line 1 must be NAME sha256:HASH" in server.log()
    assert ALICE not in server.log()
    assert server.client.get("/v1/models", headers=bearer(ALICE)).status_code == 200
    (server.folder / "keys").write_text(line_of("alice", ALICE))


@pytest.mark.parametrize(
    ("client", "path", "headers", "status"),
    [
        ("127.0.0.1", "/v1/x", [], 204),
        ("10.0.0.1", "/v1/x", [], 401),
        ("127.0.0.1", "/v1/x", [(b"x-forwarded-for", b"127.0.0.1")], 401),
        (None, "/v1/x", [], 401),
        ("10.0.0.1", "/healthz", [], 204),
        ("10.0.0.1", "/health", [], 204),
    ],
)
def test_plain_uvicorn_without_keys_serves_loopback_only(
    client: str | None, path: str, headers: list[tuple[bytes, bytes]], status: int
) -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request"}

    for insecure, expected in ((False, status), (True, 204)):
        limits = RateLimits(0, 0, time.monotonic)
        gate = Authentication(answer_204, ApiKeys(), limits, admin_key=None, on_loopback=False, insecure=insecure)
        scope: Scope = {"type": "http", "method": "GET", "path": path, "headers": headers}
        scope["client"] = client and (client, 1)
        start_request(scope)
        sent.clear()
        asyncio.run(gate(scope, receive, send))
        assert sent[0]["status"] == expected


async def answer_204(scope: Scope, receive: Receive, send: Send) -> None:
    await Response(status_code=204)(scope, receive, send)


async def _access_on_behalf(holder: str | None, *keys: str, admin_key: str | None = None) -> Access | int:
    """The access of a request of the server itself, or the status with which it is refused."""
    found: list[Access | int] = []

    async def note(scope: Scope, receive: Receive, send: Send) -> None:
        access = request_state(scope).access
        assert access is not None
        found.append(access)

    async def refused(message: Message) -> None:
        if message["type"] == "http.response.start":
            found.append(message["status"])

    async def receive() -> Message:
        raise AssertionError

    listed = tuple(ApiKey(key.partition("-")[0], hash_key(key)) for key in keys)
    limits = RateLimits(0, 1, time.monotonic)
    app = Authentication(note, ApiKeys(listed), limits, admin_key=admin_key, on_loopback=False, insecure=False)
    receipt = Receipt(is_counted=True, on_behalf=OnBehalf(holder, 60))
    for _ in range(2):  # its key's limits do not count
        asked: Scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": []}
        asked["state"] = with_receipt(receipt)
        start_request(asked)
        await app(asked, receive, refused)
    first, second = found
    assert first == second
    return first


@pytest.mark.anyio
async def test_a_batch_has_the_rights_of_its_key_unless_this_is_removed() -> None:
    digest = hash_key(BOB)
    access = await _access_on_behalf(holder_of(digest), ALICE, BOB)
    assert access == Access(ApiKey("bob", digest), digest=digest)
    admin = await _access_on_behalf(holder_of(hash_key(ADMIN)), ALICE, admin_key=ADMIN)
    assert admin == Access(is_admin=True, digest=hash_key(ADMIN), has_admin_key=True)
    assert await _access_on_behalf(None) == Access()
    for keys in ((ALICE,), ()):
        assert await _access_on_behalf(holder_of(hash_key(BOB)), *keys) == 401
    assert await _access_on_behalf(None, ALICE) == 401
