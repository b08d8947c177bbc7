"""Whether a device has capacity: requests beyond its limits are client errors, requests beyond its current load are
not.
"""

from typing import Any, cast

import pytest
from msgspec import structs

from genai_server.engine_client.client import EngineClient, Router
from genai_server.errors import InvalidField, QueueFull
from genai_server.messages.engine_protocol import Capacity, Load
from genai_server.messages.generation_request import ModelInfo, Sampling
from genai_server.messages.server_status import NO_SERVER

IDLE = Load(capacity=Capacity(running=2, waiting=4, waiting_tokens=100))

BUSY = Load(running=2, waiting=1, present={"": 3}, waiting_tokens={"": 60}, retry_after=7, capacity=IDLE.capacity)
FULL = Load(
    running=2, waiting=4, others=1, present={"": 6}, waiting_tokens={"": 100}, retry_after=7, capacity=IDLE.capacity
)


def engine(load: Load) -> EngineClient:
    """A client of the device "cpu", which has reported this load."""
    client = EngineClient("cpu", lambda: NO_SERVER)
    client.load = load
    return client


def two_engines(a: Load, b: Load) -> Router:
    """A router of connected engines that have reported these loads."""
    router = Router(["a", "b"], lambda: NO_SERVER)
    for client, load in zip(router.engines.values(), (a, b), strict=True):
        client.model, client._writer, client.load = ModelInfo(8, 9, [], Sampling()), cast(Any, object()), load
    return router


@pytest.mark.parametrize(
    ("load", "lengths", "fields"),
    [
        (Load(), [10**6] * 100, {}),
        (Load(capacity=Capacity(2, 4)), [10**6] * 6, {}),
        (IDLE, [10**6, 10**6, 60, 40], {}),  # the first two run at once
        (BUSY, [20, 20], {}),
        (FULL, [20, 21], {"low_priority": True}),  # the engine refuses the background for now
    ],
    ids=["unknown", "unlimited", "idle", "busy", "background"],
)
def test_what_fits_is_not_refused(load: Load, lengths: list[int], fields: dict[str, Any]) -> None:
    engine(load).require_capacity(len(lengths), lengths, param="n", **fields)


@pytest.mark.parametrize(
    ("load", "lengths", "words"),
    [
        (IDLE, [0] * 7, r"n asks for more answers than may run and wait on device cpu, 6 .*GENAI_MAX_QUEUE\); given 7"),
        (IDLE, [1, 1, 60, 41], r"at most 100 tokens together \(GENAI_MAX_QUEUE_TOKENS\).*101 tokens"),
    ],
    ids=["answers", "tokens"],
)
def test_more_than_the_capacity_is_a_client_error(load: Load, lengths: list[int], words: str) -> None:
    for low_priority in (False, True):
        with pytest.raises(InvalidField, match=words) as no:
            engine(load).require_capacity(len(lengths), lengths, param="n", low_priority=low_priority)
        assert no.value.param == "n"


@pytest.mark.parametrize(
    ("lengths", "words"),
    [
        ([20, 21], "would have 101 tokens with this one's 41: GENAI_MAX_QUEUE_TOKENS lets 100 wait"),
        ([0] * 4, "3 requests are on device cpu already: .* lets 2 run and GENAI_MAX_QUEUE lets 4 wait, given 4 more"),
    ],
    ids=["tokens", "answers"],
)
def test_full_queue_is_a_temporary_refusal(lengths: list[int], words: str) -> None:
    with pytest.raises(QueueFull, match=words) as no:
        engine(BUSY).require_capacity(len(lengths), lengths, param="n")
    assert no.value.retry_after == 7


@pytest.mark.parametrize(
    ("a", "b", "fields", "picked"),
    [
        (Load(low_priority_running=2), Load(), {}, "b"),
        (Load(low_priority_running=2), Load(others=1), {}, "a"),
        (Load(low_priority_running=2), Load(others=1), {"low_priority": True}, "b"),
        (Load(low_priority_running=2), FULL, {"low_priority": True}, "b"),
        # A queue that has a share for the tenant is not full.
        (FULL, structs.replace(FULL, others=9, present={"": 5}), {}, "b"),
        (FULL, structs.replace(FULL, others=9, present={"": 5}), {"tenant": "other"}, "a"),
    ],
)
def test_background_work_decides_between_equal_engines_only(
    a: Load, b: Load, fields: dict[str, Any], picked: str
) -> None:
    assert two_engines(a, b).pick(None, **fields)[0].device == picked


def test_a_tenant_has_its_equal_share_of_a_full_queue() -> None:
    full = engine(FULL)
    for lengths in ([50], [10] * 3):
        with pytest.raises(QueueFull):
            full.require_capacity(len(lengths), lengths, param="n")
        full.require_capacity(len(lengths), lengths, param="n", tenant="other")
    with pytest.raises(
        QueueFull,
        match="6 requests are on device cpu already, 0 of them of this key: .* GENAI_MAX_QUEUE lets 4 wait; the equal "
        "share of each of 2 keys is 3, given 4 more",
    ):
        full.require_capacity(4, param="n", tenant="other")
