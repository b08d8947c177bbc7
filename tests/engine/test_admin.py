"""How operators list and cancel requests; the runtime options are in test_loop.py."""

from pathlib import Path
from typing import Any

import pytest

from genai_server.engine.api_connections import Connected
from genai_server.messages.admin import (
    AdapterReply,
    AdminCall,
    CallFailed,
    CancelRequest,
    EndProfile,
    ListProfiles,
    ListRequests,
    LoadAdapter,
    ProfilePlan,
    RequestState,
    SetRuntimeOption,
    StartProfile,
    UnloadAdapter,
)
from genai_server.messages.engine_protocol import Accepted, Finished, Refused
from genai_server.messages.frames import ErrorInfo
from genai_server.messages.generation_request import Adapter, FinishReason
from tests.engine.bench import Bench, nothing_compiles
from tests.hand_clock import HandClock
from tests.stepped_loop import API, OTHER_API


@pytest.fixture
def bench(tmp_path: Path, clock: HandClock) -> Bench:
    found = Bench(tmp_path, max_running=2, max_waiting=3, clock=clock)
    found.put(Connected(), OTHER_API)
    return found


def reply_to(bench: Bench, call: AdminCall) -> Any:
    return bench.ask(call, object, OTHER_API)


def ask(bench: Bench, question: ListRequests | CancelRequest) -> list[RequestState]:
    requests: list[RequestState] = reply_to(bench, question).requests
    return requests


def test_requests_are_listed_in_arrival_order_with_their_phase(bench: Bench, clock: HandClock) -> None:
    with nothing_compiles(bench):
        bench.submit(1, "say " + "a" * 20)
        clock.wait(1.0)
        bench.submit(4, "say b", grammar='start: "b"')
        bench.submit(2, " " * 200 + "say x")
        bench.submit(3, "say c")
        bench.steps(9)
        clock.wait(2.0)
        found = ask(bench, ListRequests(7))
    names = [(state.request_id, state.phase, state.prompt_tokens) for state in found]
    assert names == [("r1", "decode", 26), ("r4", "queued", 7), ("r2", "prefill", 207), ("r3", "queued", 7)]
    assert found[0].age == pytest.approx(2.0)  # it was admitted in the first step, after the first wait
    assert found[0].output_tokens == len(bench.text(1)) > 0
    assert [state.output_tokens for state in found[1:]] == [0, 0, 0]


@pytest.mark.parametrize("steps", [0, 1, 9])
def test_request_cancelled_by_name_ends_once_with_its_text(bench: Bench, steps: int) -> None:
    bench.submit(1, "say hello" + " " * 20)
    bench.submit(2, "say other")
    bench.steps(steps)
    ended = ask(bench, CancelRequest(7, "r1"))
    assert [state.request_id for state in ended] == ["r1"]
    text = bench.text(1)
    assert bench.reason(1) == FinishReason.CANCELLED
    bench.run()
    assert (bench.text(1), len(bench.ends(1))) == (text, 1)
    assert bench.text(2) == "other"


def test_queued_and_compiling_requests_can_be_cancelled(bench: Bench) -> None:
    with nothing_compiles(bench):
        for key in (1, 2, 3):
            bench.submit(key, "count 50")
        bench.submit(4, "say a", grammar='start: "a"')
        bench.steps(2)
        for call, name in enumerate(("r3", "r4")):
            assert [state.phase for state in ask(bench, CancelRequest(call, name))] == ["queued"]
    for key in (3, 4):
        assert bench.kinds(key) == [Accepted, Finished]
        assert bench.reason(key) == FinishReason.CANCELLED


def test_all_answers_of_one_request_are_cancelled(bench: Bench) -> None:
    for key, connection in ((1, API), (2, OTHER_API)):
        bench.submit(key, "count 50", request_id="twice", connection=connection)
    bench.steps(2)
    assert len(ask(bench, CancelRequest(7, "twice"))) == 2
    assert bench.reason(1) == bench.reason(2) == FinishReason.CANCELLED


def test_a_name_that_two_requests_have_ends_neither(bench: Bench) -> None:
    for key in (1, 2):
        bench.submit(key, "count 50", request_id="twice", unique_id=f"u{key}")
    bench.steps(2)
    for question in (CancelRequest(7, "twice"), ListRequests(8, "twice")):
        assert [state.unique_id for state in ask(bench, question)] == ["u1", "u2"]
    reply = reply_to(bench, SetRuntimeOption(9, "terminate_session", "1", "twice"))
    assert [state.unique_id for state in reply.requests] == ["u1", "u2"]
    assert bench.ends(1) == bench.ends(2) == []
    assert [state.unique_id for state in ask(bench, CancelRequest(10, "u2"))] == ["u2"]
    assert [state.unique_id for state in ask(bench, CancelRequest(11, "twice"))] == ["u1"]
    assert bench.reason(1) == bench.reason(2) == FinishReason.CANCELLED


def test_a_unique_id_precedes_an_equal_id(bench: Bench) -> None:
    bench.submit(1, "count 50", request_id="x", unique_id="u1")
    bench.submit(2, "count 50", request_id="u1", unique_id="u2")
    bench.steps(2)
    assert [state.unique_id for state in ask(bench, ListRequests(7, "u1"))] == ["u1"]
    assert [state.unique_id for state in ask(bench, CancelRequest(8, "u1"))] == ["u1"]
    assert ask(bench, CancelRequest(9, "u1", is_unique=True)) == []
    assert bench.ends(2) == []
    assert [state.unique_id for state in ask(bench, CancelRequest(10, "u1"))] == ["u2"]


# profile sessions


def test_starting_a_session_returns_it_and_listing_returns_all(bench: Bench) -> None:
    one = reply_to(bench, StartProfile(1, ProfilePlan("one"))).sessions
    other = reply_to(bench, StartProfile(2, ProfilePlan("other"))).sessions
    assert [[state.id.partition("_")[0] for state in states] for states in (one, other)] == [["one"], ["other"]]
    assert reply_to(bench, ListProfiles(3)).sessions == one + other
    assert reply_to(bench, EndProfile(4, one[0].id)).sessions == other
    assert reply_to(bench, ListProfiles(5)).sessions == other


def test_session_that_ends_at_once_is_still_returned(bench: Bench) -> None:
    (begun,) = reply_to(bench, StartProfile(1, ProfilePlan("one", max_seconds=5e-324))).sessions
    assert (begun.state, reply_to(bench, ListProfiles(2)).sessions) == ("waiting", [])


def test_invalid_session_is_refused_with_code_and_field(bench: Bench) -> None:
    reply = reply_to(bench, StartProfile(1, ProfilePlan("one", request_id="missing")))
    error = ErrorInfo("request_not_found", 'no request "missing" is running or waiting', "request_id")
    assert reply == CallFailed(1, error)
    assert reply_to(bench, EndProfile(2, "one_1")).error.code == "profile_not_found"


@pytest.fixture
def polite(tmp_path: Path) -> Adapter:
    file = tmp_path / "polite.txt"
    file.write_text("Sir, ", encoding="utf-8")
    return Adapter("polite", str(file), "id-1")


def test_invalid_adapter_is_refused_without_side_effects(bench: Bench, polite: Adapter) -> None:
    bench.submit(1, "say hello")
    bench.steps(2)
    reply = reply_to(bench, LoadAdapter(7, Adapter("bad", "/nowhere", "id-2")))
    assert (reply.call, reply.error.code, reply.error.param) == (7, "adapter_load_failed", "path")
    bench.run()
    assert bench.reason(1) == FinishReason.STOP


@pytest.mark.parametrize("steps", [1, 30])
def test_requests_continue_with_an_unloaded_adapter(bench: Bench, polite: Adapter, steps: int) -> None:
    """Requests that are queued, prefilling or decoding."""
    reply_to(bench, LoadAdapter(6, polite))
    for key in (1, 2, 3):
        bench.submit(key, "say hello" + " " * 40 + "world", adapter=polite)
    bench.submit(4, "say hello")
    bench.steps(steps)
    assert reply_to(bench, UnloadAdapter(7, polite.id)) == AdapterReply(7, ["r1", "r2", "r3"])
    bench.submit(5, "say hello", adapter=polite)
    bench.run()
    for key in (1, 2, 3):
        assert bench.text(key) == "Sir, hello" + " " * 40 + "world"
    assert bench.of(5) == [Refused(5, ErrorInfo("model_not_found", 'adapter "polite" was unloaded', "model"))]


def test_request_list_has_the_adapters(bench: Bench, polite: Adapter) -> None:
    bench.submit(1, "say hello", adapter=polite)
    bench.submit(2, "say hello")
    assert [state.adapter for state in ask(bench, ListRequests(7))] == ["polite", None]
