"""The state of a request, from its receipt on."""

from typing import Any

from genai_server.http.request_state import Receipt, receipt_of, request_state, start_request, with_receipt


def _scope(state: dict[str, Any] | None = None) -> dict[str, Any]:
    scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/", "headers": []}
    return scope if state is None else {**scope, "state": state}


def test_a_request_keeps_its_receipt_and_arrival_or_arrives_now() -> None:
    scope = _scope(with_receipt(Receipt(arrived=3.0, max_files=10, is_counted=True)))
    state = start_request(scope, "model", lambda: 5.0)
    assert request_state(scope) is state
    assert (state.receipt.max_files, state.receipt.is_counted) == (10, True)
    assert (state.record.arrival.began, state.record.arrival.elapsed, state.record.model) == (3.0, 2.0, "model")
    assert start_request(_scope(), clock=lambda: 5.0).record.arrival.began == 5.0
    assert receipt_of({}) == Receipt()


def test_the_scope_keeps_nothing_but_the_request_state() -> None:
    lifespan = {"of_the_process": object(), **with_receipt(Receipt())}
    scope = _scope(lifespan.copy())
    state = start_request(scope)
    assert list(scope["state"].values()) == [state]
    assert set(lifespan) == {"of_the_process", *with_receipt(Receipt())}
