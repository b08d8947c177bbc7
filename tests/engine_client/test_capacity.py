"""Whether a device has room: what it never takes is the request's fault, what it does not take now is not."""

import pytest

from genai_server.engine_client.capacity import require_capacity
from genai_server.errors import InvalidField, QueueFull
from genai_server.messages.figures import Capacity, Load

IDLE = Load(room=6, capacity=Capacity(running=2, waiting=4, waiting_tokens=100))


def test_as_long_as_nothing_is_known_all_is_tried() -> None:
    require_capacity(Load(), "cpu", 10**6, [10**6] * 3, param="n")


def test_more_answers_than_may_ever_run_and_wait_are_the_requests_fault() -> None:
    require_capacity(IDLE, "cpu", 6, [], param="n")
    with pytest.raises(
        InvalidField, match=r"prompt may make 6 answers on device cpu.*GENAI_MAX_QUEUE\), given 7"
    ) as no:
        require_capacity(IDLE, "cpu", 7, [], param="prompt")
    assert no.value.param == "prompt"


def test_more_tokens_than_may_ever_wait_are_the_requests_fault_too() -> None:
    require_capacity(IDLE, "cpu", 4, [10**6, 10**6, 60, 40], param="n")  # the first two run at once
    with pytest.raises(InvalidField, match=r"at most 100 tokens together \(GENAI_MAX_QUEUE_TOKENS\).*101 tokens") as no:
        require_capacity(IDLE, "cpu", 4, [1, 1, 60, 41], param="n")
    assert no.value.param == "n"


def test_any_number_of_tokens_may_wait_where_there_is_no_limit() -> None:
    require_capacity(Load(room=6, capacity=Capacity(2, 4)), "cpu", 6, [10**6] * 6, param="n")


def test_what_there_is_no_room_for_now_may_be_taken_later() -> None:
    load = Load(running=2, waiting=1, room=3, room_tokens=40, retry_after=7, capacity=IDLE.capacity)
    require_capacity(load, "cpu", 2, [20, 20], param="n")
    with pytest.raises(QueueFull, match=r"40 more tokens of prompts may wait .*GENAI_MAX_QUEUE_TOKENS.*given 41") as no:
        require_capacity(load, "cpu", 2, [20, 21], param="n")
    assert no.value.retry_after == 7
    with pytest.raises(QueueFull, match=r"3 more requests may wait .*GENAI_MAX_QUEUE\), given 4"):
        require_capacity(load, "cpu", 4, [], param="n")
