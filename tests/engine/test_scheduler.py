"""Whose turn it is: order of arrival, one token each, then one chunk of the oldest prompt."""

import pytest

from genai_server.engine.scheduler import Scheduler
from genai_server.engine.sequence import Sequence
from genai_server.errors import QueueFull
from genai_server.generation import GenerationRequest


def _sequence(name: str, *, decoding: bool = False) -> Sequence:
    sequence = Sequence(0, (0, 0), GenerationRequest(name, [1], 10, 20), lambda: 0.0)
    if decoding:
        sequence.append(5)
    return sequence


def _names(sequences: list[Sequence]) -> list[str]:
    return [sequence.request.request_id for sequence in sequences]


def _turns(scheduler: Scheduler, count: int) -> str:
    """The next turns, by one-letter name; "-" is nobody."""
    turns = (scheduler.next_turn() for _ in range(count))
    return "".join("-" if turn is None else turn.request.request_id for turn in turns)


def _running(*sequences: Sequence) -> Scheduler:
    scheduler = Scheduler(max_running=16, max_waiting=16)
    for sequence in sequences:
        scheduler.add(sequence)
    scheduler.admit()
    return scheduler


# waiting and running


def test_sequences_are_admitted_in_order_of_arrival_while_there_is_room() -> None:
    scheduler = Scheduler(max_running=2, max_waiting=5)
    for name in "abc":
        scheduler.add(_sequence(name))
    assert _names(scheduler.admit()) == ["a", "b"]
    assert (_names(scheduler.running), _names(list(scheduler.waiting))) == (["a", "b"], ["c"])
    assert scheduler.admit() == []


def test_who_leaves_makes_room_for_the_next() -> None:
    scheduler = Scheduler(max_running=1, max_waiting=5)
    a, b, c = (_sequence(name) for name in "abc")
    for sequence in (a, b, c):
        scheduler.add(sequence)
    scheduler.admit()
    scheduler.remove(b)
    scheduler.remove(a)
    assert scheduler.admit() == [c]


@pytest.mark.parametrize("admitted_first", [True, False])
def test_as_many_as_may_run_and_wait_are_taken_and_no_more(admitted_first: bool) -> None:
    scheduler = Scheduler(max_running=2, max_waiting=1)
    for name in "abc":
        scheduler.add(_sequence(name))
        if admitted_first:
            scheduler.admit()
    with pytest.raises(QueueFull, match=r"3 requests .* GENAI_MAX_QUEUE lets 1 wait"):
        scheduler.add(_sequence("d"))


def test_a_queue_of_none_still_lets_requests_run() -> None:
    scheduler = Scheduler(max_running=1, max_waiting=0)
    a = _sequence("a")
    scheduler.add(a)
    with pytest.raises(QueueFull):
        scheduler.add(_sequence("b"))
    scheduler.admit()
    scheduler.remove(a)
    scheduler.add(_sequence("b"))
    assert _names(scheduler.admit()) == ["b"]


def test_a_refused_sequence_is_not_kept() -> None:
    scheduler = Scheduler(max_running=1, max_waiting=0)
    a = _sequence("a")
    scheduler.add(a)
    with pytest.raises(QueueFull):
        scheduler.add(_sequence("b"))
    scheduler.remove(a)
    assert scheduler.is_idle


def test_there_is_something_to_do_while_anything_waits_or_runs() -> None:
    scheduler = Scheduler(max_running=1, max_waiting=1)
    a = _sequence("a")
    idle = [scheduler.is_idle]
    scheduler.add(a)
    idle.append(scheduler.is_idle)
    scheduler.admit()
    idle.append(scheduler.is_idle)
    scheduler.remove(a)
    idle.append(scheduler.is_idle)
    assert idle == [True, False, False, True]


# turns


def test_nobody_has_a_turn_where_nothing_runs() -> None:
    scheduler = Scheduler(max_running=1, max_waiting=1)
    assert scheduler.next_turn() is None
    scheduler.add(_sequence("a"))
    assert scheduler.next_turn() is None


def test_decoding_sequences_take_turns_in_order_of_arrival() -> None:
    assert _turns(_running(*(_sequence(name, decoding=True) for name in "abc")), 7) == "abcabca"


def test_a_prompt_has_all_turns_when_it_is_alone() -> None:
    assert _turns(_running(_sequence("p")), 3) == "ppp"


def test_of_several_prompts_the_oldest_is_read_to_its_end_first() -> None:
    first, second = _sequence("p"), _sequence("q")
    scheduler = _running(first, second)
    assert _turns(scheduler, 3) == "ppp"
    first.append(5)
    assert _turns(scheduler, 4) == "pqpq"


def test_however_many_prompts_wait_a_stream_pauses_for_one_chunk() -> None:
    # The prompts came first, and still every round has one chunk only.
    scheduler = _running(*(_sequence(name) for name in "pqr"), *(_sequence(name, decoding=True) for name in "ab"))
    assert _turns(scheduler, 9) == "abpabpabp"


def test_a_sequence_that_arrives_within_a_round_waits_for_the_next() -> None:
    scheduler = _running(*(_sequence(name, decoding=True) for name in "ab"))
    assert _turns(scheduler, 1) == "a"
    scheduler.add(_sequence("p"))
    scheduler.admit()
    assert _turns(scheduler, 4) == "babp"


def test_a_finished_prompt_joins_the_decoding_ones_in_the_next_round() -> None:
    prompt = _sequence("p")
    scheduler = _running(_sequence("a", decoding=True), prompt)
    assert _turns(scheduler, 2) == "ap"
    prompt.append(5)
    assert _turns(scheduler, 4) == "apap"


def test_who_leaves_within_a_round_has_no_turn_any_more() -> None:
    a, b, c = (_sequence(name, decoding=True) for name in "abc")
    scheduler = _running(a, b, c)
    assert _turns(scheduler, 1) == "a"
    scheduler.remove(b)
    assert _turns(scheduler, 4) == "caca"


def test_nobody_has_a_turn_when_all_have_left_within_a_round() -> None:
    a, b = (_sequence(name, decoding=True) for name in "ab")
    scheduler = _running(a, b)
    assert _turns(scheduler, 1) == "a"
    scheduler.remove(a)
    scheduler.remove(b)
    assert _turns(scheduler, 1) == "-"
    scheduler.add(_sequence("c"))
    scheduler.admit()
    assert _turns(scheduler, 2) == "cc"
