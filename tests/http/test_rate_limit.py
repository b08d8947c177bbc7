"""The limits of each key."""

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import psutil
import pytest

from genai_server.errors import InvalidField, RateLimitExceeded
from genai_server.http.api_keys import ApiKey, line_of
from genai_server.http.rate_limit import RateLimits
from tests.hand_clock import HandClock
from tests.running_server import RunningServer, body, refusal, suspended, wait_until
from tests.server_here import run_here

ANN, BOB, CID = ApiKey("ann", b"a"), ApiKey("bob", b"b"), ApiKey("cid", b"c", concurrent=2, rate=0)
KEY = "0123456789abcdef"


def refused(limits: RateLimits, key: ApiKey) -> RateLimitExceeded:
    with pytest.raises(RateLimitExceeded) as raised, limits.request(key):
        raise AssertionError("let in")
    return raised.value


def let_in(limits: RateLimits, key: ApiKey) -> None:
    with limits.request(key):
        pass


def test_requests_at_once_are_limited_by_key_and_released() -> None:
    limits = RateLimits(1, 0, HandClock())
    with pytest.raises(KeyError), limits.request(ANN):
        assert "too many concurrent requests: this key may have 1, and has 1" in refused(limits, ANN).message
        let_in(limits, BOB)
        raise KeyError
    let_in(limits, ANN)


def test_retry_after_is_derived_from_the_keys_durations(clock: HandClock) -> None:
    limits = RateLimits(1, 0, clock)
    with limits.request(ANN):
        assert refused(limits, ANN).retry_after == 1
        clock.wait(40)
    with limits.request(ANN):
        assert refused(limits, ANN).retry_after == 8  # a fifth of it, because it was the first


def test_requests_within_a_minute_are_limited_by_key(clock: HandClock) -> None:
    limits = RateLimits(0, 2, clock)
    let_in(limits, ANN)
    clock.wait(20.5)
    let_in(limits, ANN)
    error = refused(limits, ANN)
    assert "this key may start 2 per minute, and has started 2" in error.message
    assert error.retry_after == 40
    clock.wait(39.5)
    let_in(limits, ANN)
    assert refused(limits, ANN).retry_after == 21


def test_each_answer_of_a_request_counts() -> None:
    limits = RateLimits(4, 0, HandClock())
    surplus = "concurrent answers: this key may have 4, and has 4, given 2 more"
    with limits.request(ANN):
        with limits.answers(ANN, 3, "n"):
            with limits.request(ANN):
                assert "this key may have 4, and has 4" in refused(limits, ANN).message
            with limits.request(ANN), pytest.raises(RateLimitExceeded, match=surplus):
                limits.answers(ANN, 3, "n").__enter__()
            with limits.request(BOB), limits.answers(BOB, 4, "n"):
                pass
        with limits.answers(ANN, 4, "n"):
            pass


def test_more_answers_than_a_key_may_ever_have_are_a_client_error() -> None:
    limits = RateLimits(4, 0, HandClock())
    with limits.request(CID), pytest.raises(InvalidField, match="prompt asks for .*, 2 .* given 3") as raised:
        limits.answers(CID, 3, "prompt").__enter__()
    assert raised.value.param == "prompt"
    with limits.request(ANN), limits.answers(ANN, 4, "n"):
        pass
    with RateLimits(0, 0, HandClock()).answers(ANN, 1000, "n"):
        pass


def test_refused_request_is_not_counted() -> None:
    limits = RateLimits(1, 2, HandClock())
    with limits.request(ANN):
        for _ in range(5):
            refused(limits, ANN)
    let_in(limits, ANN)
    assert "per minute" in refused(limits, ANN).message


def test_limits_of_a_key_override_the_settings() -> None:
    limits = RateLimits(1, 1, HandClock())
    with limits.request(CID), limits.request(CID):
        assert "this key may have 2, and has 2" in refused(limits, CID).message


def test_reads_at_once_count_apart_from_requests() -> None:
    limits = RateLimits(1, 1, HandClock())
    surplus = "too many concurrent reads of stored responses and files: this key may have 1"
    with limits.request(ANN), limits.read(ANN):
        with pytest.raises(RateLimitExceeded, match=surplus):
            limits.read(ANN).__enter__()
        with limits.read(BOB):
            pass
    for _ in range(3):  # within one minute
        with limits.read(ANN):
            pass


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("limited")
    lines = [line_of("slow", f"slow-{KEY}") + " concurrent=1", line_of("often", f"often-{KEY}") + " rate=1"]
    (folder / "keys").write_text("\n".join(lines))
    options = ("--api-key-file", str(folder / "keys"), "--cors-origins", "https://app.example")
    with run_here(folder, "--device", "scripted", *options) as server:
        yield server


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}-{KEY}"}


def chat(server: RunningServer, name: str, path: str = "/v1/chat", content: str = "say x") -> httpx.Response:
    return server.client.post(path, json=body(content), headers=bearer(name))


@pytest.mark.parametrize("end", ["whole", "cut", "failed"])
def test_running_request_holds_the_keys_slot_until_it_ends(limited: RunningServer, end: str) -> None:
    script = "delay 0.1; " + {"whole": "count 9", "cut": "count 999", "failed": "count 9; fail at 9"}[end]
    health = limited.client.get("/healthz", headers=bearer("slow")).json()
    engine = psutil.Process(health["devices"]["scripted"]["pid"])
    with (
        httpx.Client(base_url=limited.url, timeout=90) as client,
        client.stream("POST", "/v1/chat/stream", json=body(script), headers=bearer("slow")) as response,
    ):
        lines = response.iter_lines()
        next(lines)
        with suspended(engine):
            refusal = chat(limited, "slow")
            assert limited.client.get("/v1/models", headers=bearer("slow")).status_code == 200
        error = refusal.json()["error"]
        assert (refusal.status_code, error["type"], error["code"]) == (429, "rate_limit_error", "rate_limit_exceeded")
        assert int(refusal.headers["retry-after"]) >= 1
        if end != "cut":
            assert list(lines)
    wait_until(lambda: chat(limited, "slow").status_code == 200)


def test_reads_of_what_is_stored_count_for_their_key(limited: RunningServer) -> None:
    wait_until(lambda: chat(limited, "slow").status_code == 200)
    asked = {"input": "count 999; delay 0.1", "background": True, "stream": True}
    with httpx.Client(base_url=limited.url, timeout=90, headers=bearer("slow")) as client:
        with client.stream("POST", "/v1/responses", json=asked) as response:
            (created,) = [line for line, _ in zip(response.iter_lines(), range(2), strict=False) if "data: " in line]
        path = f"/v1/responses/{json.loads(created.removeprefix('data: '))['response']['id']}"
        # A background response counts as a request, but does not prevent its client from reading it.
        assert client.get(path).json()["status"] in ("queued", "in_progress")
        with client.stream("GET", path, params={"stream": True}) as followed:
            lines = followed.iter_lines()
            next(lines)
            reads = [("GET", path), ("GET", f"{path}/input_items"), ("DELETE", "/v1/conversations/conv")]
            for method, read in (*reads, ("GET", "/v1/files")):
                refusal = limited.client.request(method, read, headers=bearer("slow"))
                assert refusal.status_code == 429, read
                assert "reads of stored responses" in refusal.json()["error"]["message"]
            assert limited.client.get("/v1/models", headers=bearer("slow")).status_code == 200
            assert limited.client.post(f"{path}/cancel", headers=bearer("slow")).status_code == 200
            assert list(lines)
        wait_until(lambda: limited.client.get(path, headers=bearer("slow")).status_code == 200)
    wait_until(lambda: chat(limited, "slow").status_code == 200)


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/chat/completions", {**body("say x"), "n": 2}, "n"),
        ("/v1/completions", {"prompt": "x", "n": 2}, "n"),
        ("/v1/completions", {"prompt": ["x", "y"]}, "prompt"),
        ("/v1/completions", {"prompt": ["x", "y"], "n": 2}, "n"),
    ],
)
def test_the_field_that_asks_for_too_many_answers_is_named(
    limited: RunningServer, path: str, fields: dict[str, Any], param: str
) -> None:
    assert refusal(limited.client.post(path, json=fields, headers=bearer("slow"))) == (400, "invalid_value", param)


def test_refused_request_is_not_parsed_and_has_the_apis_form(limited: RunningServer) -> None:
    wait_until(lambda: chat(limited, "often").status_code in (200, 429))
    whole = limited.client.post("/v1/messages", json={}, headers=bearer("often"))
    assert whole.status_code == 429  # although the body is invalid: it was not read
    assert whole.json()["error"]["type"] == "rate_limit_error"
    assert 1 <= int(whole.headers["retry-after"]) <= 60


def test_a_web_page_of_a_listed_origin_reads_a_stream_and_a_429(limited: RunningServer) -> None:
    headers = {**bearer("slow"), "origin": "https://app.example"}
    wait_until(lambda: chat(limited, "slow").status_code == 200)
    with (
        httpx.Client(base_url=limited.url, timeout=90) as client,
        client.stream("POST", "/v1/chat/stream", json=body("count 99; delay 0.1"), headers=headers) as stream,
    ):
        lines = stream.iter_lines()
        next(lines)
        refusal = limited.client.post("/v1/chat", json=body("say x"), headers=headers)
        assert refusal.status_code == 429
        for response in (stream, refusal):
            assert response.headers["access-control-allow-origin"] == "https://app.example"
            assert "retry-after" in response.headers["access-control-expose-headers"]
        unlisted = {**headers, "origin": "https://evil.example"}
        refusal = limited.client.post("/v1/chat", json=body("say x"), headers=unlisted)
        assert refusal.status_code == 429
        assert "access-control-allow-origin" not in refusal.headers
    wait_until(lambda: chat(limited, "slow").status_code == 200)


@pytest.mark.anyio
async def test_openais_client_tries_again_after_a_429(limited: RunningServer) -> None:
    """Its second attempt follows when the slot is free, as Retry-After says."""
    attempts, is_refused = list[int](), asyncio.Event()

    async def note(response: Any) -> None:
        attempts.append(response.status_code)
        if response.status_code == 429:
            is_refused.set()

    http = openai.DefaultAsyncHttpxClient(event_hooks={"response": [note]})
    async with openai.AsyncOpenAI(base_url=f"{limited.url}/v1", api_key=f"slow-{KEY}", http_client=http) as client:
        create, running, later = client.chat.completions.create, body("count 999; delay 0.05"), body("say again")
        first = await create(model="demo", stream=True, messages=running["messages"])
        second = asyncio.ensure_future(create(model="demo", messages=later["messages"]))
        await is_refused.wait()
        await first.close()
        assert (await second).choices[0].message.content == "again"
    assert (attempts[:2], attempts[-1]) == ([200, 429], 200)


@pytest.mark.parametrize("name", ["GENAI_MAX_CONCURRENT_PER_KEY", "GENAI_RATE_PER_KEY"])
def test_limits_for_each_key_need_keys(refused_start: Callable[..., str], name: str) -> None:
    assert f"{name}=5: it applies to each key" in refused_start(GENAI_DEVICE="scripted", **{name: "5"})
