"""How API keys share the limit of all bodies."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from genai_server.errors import BodiesTooLarge
from genai_server.http.body_budget import SMALL, BodyBudget, HeldBody
from genai_server.http.request_state import KeyTurns, ParsingThread

MiB = 1024 * 1024
ALICE, BOB, CAROL = b"alice", b"bob", b"carol"


class Bodies:
    """Bodies that arrive, and the names of those that were revoked."""

    def __init__(self, limit: int) -> None:
        self.budget = BodyBudget(limit, "GENAI_SETTING")
        self.revoked: list[str] = []

    def arriving(self, name: str, key: bytes | None, num_bytes: int) -> HeldBody:
        body = self.budget.open(key, lambda error: self.revoked.append(name))
        body.resize(num_bytes)
        return body

    def refusal(self, key: bytes | None, num_bytes: int) -> str:
        """Why a body of a key cannot have this size."""
        with pytest.raises(BodiesTooLarge) as raised:
            self.budget.open(key).resize(num_bytes)
        return raised.value.message


def test_a_key_alone_may_use_the_whole_limit() -> None:
    bodies = Bodies(10 * MiB)
    bodies.arriving("first", ALICE, 6 * MiB)  # of which 5 count beyond the first MiB
    second = bodies.arriving("second", ALICE, 6 * MiB)
    assert bodies.refusal(ALICE, 3 * MiB) == (
        f"the bodies of all requests together may have at most {10 * MiB} bytes (GENAI_SETTING), and {10 * MiB} are "
        "there; try again"
    )
    with pytest.raises(BodiesTooLarge):
        second.resize(6 * MiB + 1)
    assert second.num_bytes == 6 * MiB
    second.release()
    bodies.arriving("third", ALICE, 6 * MiB)
    assert bodies.revoked == []


def test_a_single_body_is_exempt() -> None:
    bodies = Bodies(10)
    bodies.arriving("large", None, 50 * MiB)
    assert "at most 10 bytes" in bodies.refusal(None, 1)


def test_another_key_takes_its_share_back_from_the_newest_bodies_of_the_largest_holder() -> None:
    bodies = Bodies(12 * MiB)
    for name in ("oldest", "middle", "newest"):
        bodies.arriving(name, ALICE, 5 * MiB)
    bob = bodies.arriving("bob's", BOB, 2 * MiB)
    assert bodies.revoked == ["newest"]
    bob.resize(5 * MiB)
    assert bodies.revoked == ["newest"]
    bob.resize(7 * MiB)  # exactly his half
    assert bodies.revoked == ["newest", "middle"]
    bodies.arriving("carol's", CAROL, 4 * MiB)  # now bob has more than a third
    assert bodies.revoked == ["newest", "middle", "bob's"]
    bodies.arriving("bob's", BOB, 5 * MiB)
    said = "of which each of 3 API keys has a share of 4194304, and this one holds 4194304"
    assert said in bodies.refusal(BOB, 4 * MiB)


def test_a_key_within_its_share_and_complete_bodies_lose_nothing() -> None:
    bodies = Bodies(12 * MiB)
    bodies.arriving("alice's", ALICE, 7 * MiB)
    bodies.arriving("bob's", BOB, 7 * MiB)
    assert "each of 2 API keys has a share of 6291456, and this one holds 6291456" in bodies.refusal(BOB, 3 * MiB)
    assert bodies.revoked == []
    bodies = Bodies(10 * MiB)
    whole = [bodies.arriving(name, ALICE, 6 * MiB) for name in ("first", "second")]
    for body in whole:
        body.arrived()
    bodies.arriving("bob's", BOB, 6 * MiB)  # his share exceeds the limit
    assert bodies.revoked == []
    assert "share of 5242880" in bodies.refusal(BOB, 2 * MiB)
    assert "share of 5242880" in bodies.refusal(ALICE, 2 * MiB)


def test_large_bodies_do_not_refuse_small_ones_of_the_same_key() -> None:
    bodies = Bodies(10 * MiB)
    bodies.arriving("large", None, 10 * MiB)
    large = bodies.arriving("large, too", None, 2 * MiB)
    small = [bodies.arriving("small", None, SMALL) for _ in range(8)]
    assert f"and {10 * MiB} are there" in bodies.refusal(None, 1)
    small[0].release()
    bodies.arriving("small", None, SMALL)
    large.release()
    assert bodies.revoked == []


def test_a_revoked_body_counts_no_more_and_is_refused_with_the_reason() -> None:
    budget, errors = BodyBudget(10 * MiB, "GENAI_SETTING"), list[BodiesTooLarge]()
    held = budget.open(ALICE, errors.append)
    other = budget.open(ALICE, errors.append)
    held.resize(6 * MiB)
    other.resize(6 * MiB)
    budget.open(BOB).resize(2 * MiB)
    assert (held.num_bytes, other.num_bytes) == (6 * MiB, 0)
    assert [error.message for error in errors] == [
        f"the bodies of all requests together may have at most {10 * MiB} bytes (GENAI_SETTING); another API key "
        f"needed its share of {5 * MiB} while this one held more; try again"
    ]


def test_parsing_releases_a_body_unless_its_images_are_kept() -> None:
    bodies = Bodies(10 * MiB)
    text, media = bodies.arriving("text", None, 5 * MiB), bodies.arriving("media", None, 5 * MiB)
    media.has_media = True
    for body in (text, media):
        body.arrived()
        body.parsed()
    assert (text.num_bytes, media.num_bytes) == (0, 5 * MiB)
    media.release()
    media.release()
    bodies.arriving("next", None, 5 * MiB)
    bodies.arriving("next", None, 5 * MiB)


Begin = Callable[[str, bytes | None], Awaitable[None]]


async def _begun(begin: Begin, order: list[str]) -> list[str]:
    """The order in which requests of several keys that arrive together begin, of which one is cancelled."""
    asked = [("a0", ALICE), ("a1", ALICE), ("a2", ALICE), ("a3", ALICE), ("b0", BOB), ("b1", BOB), ("n0", None)]
    tasks = [asyncio.ensure_future(begin(name, key)) for name, key in asked]
    await asyncio.sleep(0)  # all wait for the first
    assert order in ([], ["a0"])
    tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await begin("later", BOB)
    return order


@pytest.mark.anyio
async def test_keys_take_turns_with_the_parsing_thread() -> None:
    parsing, order = ParsingThread(), list[str]()

    async def parse(name: str, key: bytes | None) -> None:
        await parsing.run(lambda: order.append(name), num_bytes=100_000, key=key)

    assert await _begun(parse, order) == ["a0", "b0", "n0", "a2", "b1", "a3", "later"]


@pytest.mark.anyio
async def test_requests_that_arrive_together_begin_one_by_one_and_keys_take_turns() -> None:
    turns, order = KeyTurns(), list[str]()

    async def wait(name: str, key: bytes | None) -> None:
        await turns.wait_for_turn(key)
        order.append(name)

    assert await _begun(wait, order) == ["a0", "b0", "n0", "a2", "b1", "a3", "later"]


@pytest.mark.anyio
async def test_a_request_that_comes_alone_begins_at_once() -> None:
    with pytest.raises(StopIteration):
        KeyTurns().wait_for_turn(ALICE).send(None)
