"""Whose turn it is: by the service that each tenant has received."""

import pytest

from genai_server.fair_queue import FairQueue


def turns(tenants: FairQueue, number: int, **sizes: int) -> str:
    """The next turns of tenants that always have work, by one-letter names; `sizes` are the tokens of a turn."""
    found = ""
    for _ in range(number):
        tenant = min(sizes, key=tenants.turn)
        tenants.serve(tenant, sizes[tenant])
        found += tenant
    return found


def begun(*names: str, max_credit: int = 100) -> FairQueue:
    tenants = FairQueue(max_credit)
    for number, name in enumerate(names):
        tenants.arrive(name, names[:number])
    return tenants


def test_shares_take_turns() -> None:
    assert turns(begun("a", "b", "c"), 7, a=10, b=10, c=10) == "abcabca"


def test_shares_get_equal_tokens_whatever_the_sizes_of_their_turns() -> None:
    found = turns(begun("a", "b"), 1000, a=64, b=8)
    assert abs(64 * found.count("a") - 8 * found.count("b")) <= 64


def test_a_share_that_comes_has_the_next_turn_and_no_credit() -> None:
    tenants = begun("a")
    turns(tenants, 50, a=10)
    tenants.arrive("b", ["a"])
    assert turns(tenants, 6, a=10, b=10) == "bababa"
    turns(tenants, 50, a=10)
    tenants.arrive("b", ["a"])  # it cannot save turns by being absent
    assert turns(tenants, 4, a=10, b=10) == "baba"


def test_a_share_that_comes_while_nothing_waits_has_no_debt_to_it() -> None:
    tenants = begun("a")
    turns(tenants, 50, a=10)
    tenants.arrive("b", [])
    tenants.arrive("a", ["b"])
    assert turns(tenants, 6, a=10, b=10) == "bababa"


def test_a_share_that_waits_for_something_else_saves_a_limited_credit() -> None:
    tenants = begun("a", "b", max_credit=30)
    turns(tenants, 50, a=10)
    assert turns(tenants, 8, a=10, b=10) == "bbbababa"


@pytest.mark.parametrize("leaves", [False, True])
def test_what_a_share_has_had_counts_when_it_comes_back(leaves: bool) -> None:
    tenants = begun("a", "b")
    tenants.serve("b", 40)
    tenants.serve("a", 10)
    if leaves:
        tenants.leave("b", "a")
    tenants.arrive("b", ["a"])
    assert turns(tenants, 5, a=10, b=10) == "aaaba"


def test_of_equal_shares_the_one_that_was_served_last_comes_last() -> None:
    tenants = begun("a", "b")
    assert tenants.turn("a") == tenants.turn("b")
    tenants.serve("b", 0)
    assert tenants.turn("a") < tenants.turn("b")


def test_shares_that_have_nothing_to_remember_take_no_memory() -> None:
    tenants = FairQueue(10)
    for number in range(1000):
        tenants.arrive(f"{number}", [])
        tenants.serve(f"{number}", 5)
    assert len(tenants._accounts) <= 4


def test_a_share_that_left_with_no_more_than_others_is_forgotten() -> None:
    tenants = begun("a", "b")
    tenants.serve("a", 10)
    tenants.serve("b", 10)
    tenants.leave("b", "a")
    assert list(tenants._accounts) == ["a"]
    tenants.serve("a", 30)
    tenants.arrive("b", "a")
    assert tenants.turn("b") == (40, 0)
    tenants.forget("a")
    assert list(tenants._accounts) == ["b"]


def test_service_that_is_not_counted_yet_delays_a_turn() -> None:
    tenants = begun("a", "b")
    tenants.serve("a", 10)
    assert tenants.turn("b") < tenants.turn("a") < tenants.turn("b", in_flight=11)
