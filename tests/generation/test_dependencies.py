"""How long a request waits for its answer, and what happens when its client disconnects."""

import asyncio
import inspect
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.types import Message, Receive

from genai_server.apis import chat_completions, completions, health, models, tokens
from genai_server.apis import own_chat as chat
from genai_server.apis.admin import engines
from genai_server.apis.messages import routes as messages
from genai_server.apis.responses import routes as responses
from genai_server.engine.scheduling.drafts import AnswerMemory
from genai_server.errors import InvalidField, ServerStopping
from genai_server.generation.dependencies import ClientLeft, Deadline, RequestContext
from genai_server.http.api_keys import hash_key
from genai_server.http.leniency import Leniency
from genai_server.http.telemetry.request_record import RequestRecord
from genai_server.timing import Arrival
from tests.hand_clock import HandClock
from tests.running_server import DEMO, RunningServer, body, wait_until
from tests.scraped import parse
from tests.server_here import run_here

pytestmark = pytest.mark.anyio


def test_default_deadline_is_the_setting_from_arrival_on() -> None:
    clock = HandClock()
    deadline = Deadline(600, clock)
    clock.wait(20)
    assert deadline.seconds_left == 580
    clock.wait(600)
    assert deadline.seconds_left == 0


@pytest.mark.parametrize("order", [(5.0, 2.5), (2.5, 5.0)])
def test_the_sooner_of_two_counts(order: tuple[float, float]) -> None:
    clock = HandClock()
    deadline = Deadline(600, clock)
    clock.wait(1)
    for seconds in order:
        deadline.tighten(seconds, param="timeout")
    assert deadline.seconds_left == 1.5


@pytest.mark.parametrize("seconds", [0.0, -1.0, 600.5, float("inf"), float("nan")])
def test_timeout_out_of_range_is_refused_by_name(seconds: float) -> None:
    with pytest.raises(InvalidField, match=r"at most 600 seconds \(GENAI_REQUEST_TIMEOUT\); given") as wrong:
        Deadline(600, HandClock()).tighten(seconds, param="timeout")
    assert wrong.value.param == "timeout"


# the prefix cache


def _cached(server: RunningServer, path: str, text: str, key: str = "", **fields: Any) -> int:
    """The number of cached tokens of an answer to a text."""
    headers = {"x-api-key": key} if key else {}
    answer = server.client.post(path, json={**_asked(path, text), **fields}, headers=headers)
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or usage
    found: int = details["cache_read_input_tokens" if path == "/v1/messages" else "cached_tokens"]
    return found


def _asked(path: str, text: str) -> dict[str, Any]:
    if path == "/v1/responses":
        return {"input": text, "max_output_tokens": 1}
    return {"prompt": text, "max_tokens": 1} if path == "/v1/completions" else body(text, max_tokens=1)


TEXT = "one two three four five six seven eight nine ten "
GENERATING = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
KEYS = {"alice": "alice-0123456789abcdef", "bob": "bob-0123456789abcdef", "admin": "admin-0123456789abcdef"}


@pytest.mark.parametrize("is_shared", [False, True], ids=["apart", "shared"])
def test_prefix_cache_is_separate_by_key_unless_shared(own_folder: Path, is_shared: bool) -> None:
    settings = {
        "GENAI_API_KEYS": f"alice:{KEYS['alice']},bob:{KEYS['bob']}",
        "GENAI_ADMIN_API_KEY": KEYS["admin"],
        "GENAI_SHARED_PREFIX_CACHE": str(is_shared).lower(),
    }
    with run_here(own_folder, "--model-dir", str(DEMO), settings=settings) as server:
        for path in GENERATING:
            text = f"{path} {TEXT}"
            for number, key in enumerate(KEYS.values()):
                first, again = _cached(server, path, text, key), _cached(server, path, text, key)
                assert again > 20, path
                assert (first > 20) is (is_shared and number > 0), path
        # Answers are kept for each key apart in any case, until the caches are cleared.
        one = AnswerMemory(10**6)
        one.add("key", [1], [1])
        wait_until(lambda: _kept_bytes(server) == len(KEYS) * one.num_bytes)
        admin = {"authorization": f"Bearer {KEYS['admin']}"}
        server.client.post("/reset_prefix_cache", headers=admin).raise_for_status()
        wait_until(lambda: _kept_bytes(server) == 0)


def _kept_bytes(server: RunningServer) -> float:
    text = server.client.get("/metrics", headers={"x-api-key": KEYS["alice"]}).text
    return parse(text).value("draft_memory_bytes")


@pytest.mark.parametrize("path", GENERATING)
def test_prefix_cache_is_separate_by_salt(demo: RunningServer, path: str) -> None:
    text = f"{path} salted {TEXT}"
    first, again = _cached(demo, path, text), _cached(demo, path, text)
    assert first < 20 < again
    # Fields of OpenAI's clients for their own cache separate nothing here.
    other = {} if path == "/v1/messages" else {"prompt_cache_key": "k", "user": "u"}
    assert _cached(demo, path, text, **other) == again
    for salt in ("a", "b" * 1024):
        assert _cached(demo, path, text, cache_salt=salt) < 20
        assert _cached(demo, path, text, cache_salt=salt) == again


def test_prefix_cache_is_shared_unless_keys_or_salts_differ() -> None:
    def salt(key: bytes | None, given: str | None) -> str | None:
        return _context(_no_messages, key).cache_salt(given)

    alice, bob = hash_key("alice's key"), hash_key("bob's key")
    assert salt(None, None) is None
    parts = [salt(None, "x"), salt(None, "y"), *(salt(key, given) for key in (alice, bob) for given in (None, "x"))]
    assert len({None, *parts}) == 7
    assert parts[0] == salt(None, "x")
    assert all(part is not None and len(part) == 32 and part not in alice.hex() for part in parts)


def test_memory_of_answers_is_never_shared_between_keys() -> None:
    alice, bob = hash_key("alice's key"), hash_key("bob's key")
    asked = [(key, given) for key in (None, alice, bob) for given in (None, "x")]
    shared = [_context(_no_messages, key, shares_prefixes=True) for key, _ in asked]
    names = [context.answer_memory(given) for context, (_, given) in zip(shared, asked, strict=True)]
    assert len(set(names)) == 6
    assert names == [_context(_no_messages, key).answer_memory(given) for key, given in asked]
    assert all(len(name) == 32 and name not in alice.hex() for name in names)
    # Cached prefixes are shared if the settings say so.
    assert [context.cache_salt(None) for context in shared] == [None] * 6


def test_keys_take_turns_and_share_nothing_that_is_prepared() -> None:
    alice, bob = hash_key("alice"), hash_key("bob")
    requesters = [_context(_no_messages, key).requester(given) for key in (alice, bob) for given in (None, "x")]
    assert len({requester.owner.tenant for requester in requesters}) == 2
    assert len({requester.cache_salt for requester in requesters}) == 4
    shared = [_context(_no_messages, key, shares_prefixes=True).requester() for key in (alice, bob)]
    assert len({requester.owner.tenant for requester in shared}) == 2
    assert [requester.cache_salt for requester in shared] == [None] * 2
    without = _context(_no_messages).requester()
    assert (without.owner.tenant, without.cache_salt, without.owner.request) == ("", None, "req-1")


def test_a_tenant_stands_for_a_key_and_reveals_nothing() -> None:
    alice, bob = hash_key("alice's key of 16"), hash_key("bob's key of 16..")
    tenants = [_context(_no_messages, key).tenant for key in (None, alice, bob, alice)]
    assert tenants[0] == ""
    assert tenants[1] == tenants[3]
    assert len(set(tenants)) == 3
    others = (_context(_no_messages, alice).cache_salt(None), _context(_no_messages, alice).answer_memory(None))
    assert tenants[1] not in (alice.hex(), hash_key("alice").hex(), *others)


def test_priority_counts_next_to_other_keys_only_with_the_right() -> None:
    usual = _context(_no_messages, b"key")
    absolute = replace(usual, has_absolute_priority=True)
    assert [usual.precedence(value) for value in (None, -5, 5)] == [0, 0, 0]
    assert [absolute.precedence(value) for value in (None, -5, 5)] == [0, -5, 5]


async def _no_messages() -> Message:
    raise AssertionError("no message is read")


def _context(receive: Receive, key: bytes | None = None, *, shares_prefixes: bool = False) -> RequestContext:
    record = RequestRecord({}, "r", "req-1", "m", Arrival(HandClock()), 0.0)
    return RequestContext(Deadline(600, HandClock()), receive, record, Leniency(), key, shares_prefixes)


class Work:
    """Waits for `go`, and records whether it was cancelled before."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.begun = asyncio.Event()
        self.ended = asyncio.Event()

    async def run(self) -> str:
        self.begun.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.ended.set()
            raise
        return "done"


async def _silence() -> Any:
    await asyncio.Event().wait()


async def test_work_of_a_connected_client_returns_its_result() -> None:
    work = Work()
    work.go.set()
    assert await _context(_silence).run_while_connected(work.run()) == "done"


async def test_work_of_a_disconnected_client_is_cancelled() -> None:
    work = Work()

    async def leave() -> Any:
        await work.begun.wait()
        return {"type": "http.disconnect"}

    with pytest.raises(ClientLeft):
        await _context(leave).run_while_connected(work.run())
    await asyncio.wait_for(work.ended.wait(), 10)


async def test_stopping_server_cancels_the_work_with_a_reason() -> None:
    work = Work()
    waiting = asyncio.ensure_future(_context(_silence).run_while_connected(work.run()))
    await work.begun.wait()
    waiting.cancel()
    with pytest.raises(ServerStopping):
        await waiting
    await asyncio.wait_for(work.ended.wait(), 10)


def needs(dependant: Dependant) -> Iterator[object]:
    for inner in dependant.dependencies:
        yield inner.call
        yield from needs(inner)


def test_no_request_waits_for_a_thread_before_its_route_begins() -> None:
    modules = (engines, chat, chat_completions, completions, messages, models, responses, health, tokens)
    routes = [route for module in modules for route in module.router.routes if isinstance(route, APIRoute)]
    found = [call for route in routes for call in needs(route.dependant)]
    assert len(found) > len(routes)
    assert [call for call in found if not inspect.iscoroutinefunction(call)] == []
