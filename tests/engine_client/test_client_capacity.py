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

FULL = Load(
    running=2, waiting=4, others=1, present={"": 6}, waiting_tokens={"": 100}, retry_after=7, capacity=IDLE.capacity
)


def engine(load: Load) -> EngineClient:
    """A client of the device "cpu", which has reported this load."""
    client = EngineClient("cpu", lambda: NO_SERVER)
    client.load = load
    return client


def test_unknown_capacity_refuses_nothing() -> None:
    engine(Load()).require_capacity(10**6, [10**6] * 3, param="n")


def test_more_answers_than_capacity_are_a_client_error() -> None:
    engine(IDLE).require_capacity(6, [], param="n")
    with pytest.raises(
        InvalidField,
        match=r"prompt asks for more answers than may run and wait on device cpu, 6 .*GENAI_MAX_QUEUE\); given 7",
    ) as no:
        engine(IDLE).require_capacity(7, [], param="prompt")
    assert no.value.param == "prompt"


def test_more_tokens_than_capacity_are_a_client_error() -> None:
    engine(IDLE).require_capacity(4, [10**6, 10**6, 60, 40], param="n")  # the first two run at once
    with pytest.raises(InvalidField, match=r"at most 100 tokens together \(GENAI_MAX_QUEUE_TOKENS\).*101 tokens") as no:
        engine(IDLE).require_capacity(4, [1, 1, 60, 41], param="n")
    assert no.value.param == "n"


def test_any_number_of_tokens_may_wait_where_there_is_no_limit() -> None:
    engine(Load(capacity=Capacity(2, 4))).require_capacity(6, [10**6] * 6, param="n")


def test_full_queue_is_a_temporary_refusal() -> None:
    load = Load(running=2, waiting=1, present={"": 3}, waiting_tokens={"": 60}, retry_after=7, capacity=IDLE.capacity)
    busy = engine(load)
    busy.require_capacity(2, [20, 20], param="n")
    with pytest.raises(
        QueueFull, match=r"would have 101 tokens with this one's 41: GENAI_MAX_QUEUE_TOKENS lets 100 wait"
    ) as no:
        busy.require_capacity(2, [20, 21], param="n")
    assert no.value.retry_after == 7
    with pytest.raises(
        QueueFull,
        match=r"3 requests are on device cpu already: .* lets 2 run and GENAI_MAX_QUEUE lets 4 wait, given 4 more",
    ):
        busy.require_capacity(4, [], param="n")


def test_only_the_engine_refuses_the_background_for_now() -> None:
    full = engine(FULL)
    full.require_capacity(2, [20, 21], param="n", low_priority=True)
    with pytest.raises(InvalidField):
        full.require_capacity(7, [], param="n", low_priority=True)


def test_background_work_decides_between_equal_engines_only() -> None:
    router = Router(["a", "b"], lambda: NO_SERVER)
    for client in router.engines.values():
        client.model, client._writer = ModelInfo(8, 9, [], Sampling()), cast(Any, object())
    a, b = router.engines.values()
    a.load, b.load = Load(low_priority_running=2), Load()
    assert router.pick(None)[0] is b
    b.load = Load(others=1)
    assert router.pick(None)[0] is a
    assert router.pick(None, low_priority=True)[0] is b
    b.load = FULL
    assert router.pick(None, low_priority=True)[0] is b


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


def test_a_device_whose_queue_has_a_share_for_the_tenant_is_not_full() -> None:
    router = Router(["a", "b"], lambda: NO_SERVER)
    a, b = router.engines.values()
    for client in (a, b):
        client.model, client._writer = ModelInfo(8, 9, [], Sampling()), cast(Any, object())
    a.load, b.load = FULL, structs.replace(FULL, others=9, present={"": 5})
    assert router.pick(None)[0] is b
    assert router.pick(None, tenant="other")[0] is a
