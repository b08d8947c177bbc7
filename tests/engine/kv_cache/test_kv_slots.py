"""The bookkeeping of slots, with buffers that hold tokens, so that wrong copies are noticed.

Random operations are in test_prefix_eviction.py.
"""

import time
from typing import Any

import pytest

from genai_server.engine.kv_cache.kv_slots import KvSlots, Slot
from genai_server.engine.scheduling.scheduler_output import UNSHARED, KvBudget, KvMemory
from genai_server.errors import RunnerFailed
from genai_server.timing import Clock
from tests.hand_clock import HandClock

EMPTY = -1
GIVEN_BACK = -2
LENGTH = 64


class TokenBuffers:
    """One row of tokens per slot instead of keys and values."""

    def __init__(self, num_slots: int) -> None:
        self.rows = [[EMPTY] * LENGTH for _ in range(num_slots)]
        self.copies: list[tuple[int, int, int]] = []
        self.fails = False  # the next copy raises an error

    def fail_once(self) -> None:
        if self.fails:
            self.fails = False
            raise RunnerFailed("no memory")

    def copy(self, source: int, target: int, length: int) -> None:
        self.fail_once()
        assert source != target
        assert 0 <= length <= LENGTH
        self.copies.append((source, target, length))
        self.rows[target][:length] = self.rows[source][:length]

    def give_back(self, slot: int, first: int) -> None:
        self.rows[slot][first:] = [GIVEN_BACK] * (LENGTH - first)


class Bench:
    """Slots, their buffers, and the actions of a runner on both; `how` are arguments of `acquire`."""

    def __init__(
        self,
        num_slots: int = 4,
        *,
        memory: KvMemory = UNSHARED,
        min_copied: int = 1,
        clock: Clock = time.monotonic,
    ) -> None:
        self.buffers = TokenBuffers(num_slots)
        self.memory = memory
        self.slots = KvSlots(num_slots, self.buffers, memory=memory, min_copied=min_copied, clock=clock)

    def acquire(self, sequence: int, prompt: list[int], **how: Any) -> int:
        length = self.slots.acquire(sequence, prompt, **how)
        self.check()
        return length

    def match_again(self, sequence: int, prompt: list[int]) -> int:
        length = self.slots.match_again(sequence, prompt)
        self.check()
        return length

    def read(self, sequence: int, tokens: list[int]) -> None:
        """A pass: keys and values are appended, then noted."""
        self.slots.reserve(sequence, len(tokens))
        index = self.slots.of(sequence).index
        start = len(self.slots.slots[index].tokens)
        self.buffers.rows[index][start : start + len(tokens)] = tokens
        self.slots.append(sequence, tokens)
        self.check()

    def release(self, sequence: int) -> None:
        self.slots.release(sequence)
        self.check()

    def prefill(self, sequence: int, prompt: list[int], **how: Any) -> int:
        """Acquire a slot and read the rest of the prompt; returns the number of tokens found."""
        length = self.acquire(sequence, prompt, **how)
        self.read(sequence, prompt[length:])
        return length

    def leave_behind(self, sequence: int, prompt: list[int], answer: list[int] | None = None, **how: Any) -> None:
        """Run a sequence with its answer and release it, without reuse."""
        self.prefill(sequence, prompt, reuse=False, **how)
        self.read(sequence, answer or [])
        self.release(sequence)

    def leave_each(self, *sequences: int, length: int = 4, **how: Any) -> None:
        """Leave a prefix behind for each sequence, which repeats the sequence's number."""
        for sequence in sequences:
            self.leave_behind(sequence, [sequence] * length, **how)

    def idle(self) -> list[Slot]:
        """The slots with cached prefixes, the longest idle first."""
        idle = [slot for slot in self.slots.slots if slot.sequence is None and slot.tokens]
        return sorted(idle, key=lambda slot: slot.used)

    def pasts(self) -> list[list[int]]:
        """The contents of idle slots, the longest idle first."""
        return [slot.tokens for slot in self.idle()]

    def tokens(self, sequence: int) -> list[int]:
        """The contents of a sequence's slot according to the buffer."""
        index = self.slots.of(sequence).index
        return self.buffers.rows[index][: len(self.slots.slots[index].tokens)]

    def check(self) -> None:
        slots = self.slots
        running = [slot.sequence for slot in slots.slots if slot.sequence is not None]
        assert len(set(running)) == len(running) == slots.num_running
        assert len({id(slot) for slot in slots.slots}) == len(self.buffers.rows)
        assert [slot.index for slot in slots.slots] == list(range(len(slots.slots)))
        assert all(slots.has(sequence) for sequence in running)
        for slot, row in zip(slots.slots, self.buffers.rows, strict=True):
            assert row[: len(slot.tokens)] == slot.tokens
        assert sum(map(self.written_pages, self.buffers.rows)) <= self.memory.num_pages

    def written_pages(self, row: list[int]) -> int:
        """The pages of a row that were written and not freed, without the row's own first page."""
        written = [place for place, token in enumerate(row) if token not in (EMPTY, GIVEN_BACK)]
        return max(written, default=0) // self.memory.page_tokens


@pytest.fixture
def bench() -> Bench:
    return Bench()


# positions of sequences


@pytest.mark.parametrize("leaving", [1, 2, 3, 4])
def test_released_row_is_taken_by_the_next_and_others_stay(bench: Bench, leaving: int) -> None:
    for sequence in (1, 2, 3, 4):
        bench.prefill(sequence, [sequence] * (3 + sequence))
    bench.release(leaving)
    assert bench.pasts() == [[leaving] * (3 + leaving)]
    bench.prefill(5, [5] * 9)
    assert bench.slots.of(5).index == leaving - 1
    assert all(bench.slots.of(sequence).index == sequence - 1 for sequence in {1, 2, 3, 4} - {leaving})
    assert bench.buffers.copies == []


# reuse of pasts


def test_completely_reused_past_is_taken_over_without_a_copy(bench: Bench) -> None:
    past = [1, 2, 3, 4, 5, 6]
    bench.prefill(1, past)
    bench.leave_behind(2, past[:4], past[4:])  # as good as the running one, but idle
    assert bench.acquire(3, [*past, 7, 8]) == 6
    assert (bench.tokens(3), bench.pasts(), bench.buffers.copies) == (past, [], [])


@pytest.mark.parametrize(
    ("num_slots", "common", "taken_over"),
    [(4, 2, False), (4, 23, False), (4, 24, True), (4, 40, True), (2, 19, False), (2, 20, True)],
)
def test_past_is_taken_over_if_most_of_it_or_half_without_empty_slots_is_common(
    num_slots: int, common: int, taken_over: bool
) -> None:
    bench, past = Bench(num_slots), list(range(40))
    bench.leave_behind(1, [200] * 40)
    bench.leave_behind(2, past)
    assert bench.acquire(3, [*past[:common], 90, 91, 92]) == common
    assert bench.tokens(3) == past[:common]
    assert (past in bench.pasts()) != taken_over


def test_conversations_that_begin_alike_keep_their_pasts(bench: Bench) -> None:
    common = list(range(30))
    talks = {user: [*common, *[user * 100 + place for place in range(20)]] for user in (1, 2, 3)}
    for user, talk in talks.items():
        bench.prefill(user, talk)
        bench.release(user)
    for turn in range(3):
        for user, talk in talks.items():
            talk += [user * 100 + 50 + turn] * 4
            assert bench.prefill(user, talk) == len(talk) - 4
            bench.release(user)


def test_longest_common_past_is_used(bench: Bench) -> None:
    for sequence, past in enumerate(([1, 2, 9, 9], [1, 2, 3, 4], [1, 2, 3, 9])):
        bench.leave_behind(sequence, past)
    assert bench.acquire(7, [1, 2, 3, 4, 5, 6]) == 4


@pytest.mark.parametrize("prompt", [[1, 2, 3, 4], [1, 2, 3], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6]])
def test_two_tokens_of_a_prompt_are_always_left_to_read(bench: Bench, prompt: list[int]) -> None:
    bench.leave_behind(1, [1, 2, 3, 4, 5, 6, 7, 8])
    assert bench.acquire(2, prompt) == len(prompt) - 2


def test_sequence_without_reuse_takes_no_past_but_leaves_one(bench: Bench) -> None:
    bench.leave_behind(1, [1, 2, 3, 4, 5])
    assert bench.acquire(2, [1, 2, 3, 4, 5, 6], reuse=False) == 0
    bench.read(2, [1, 2, 3, 4, 5, 6])
    bench.release(2)
    assert bench.acquire(3, [1, 2, 3, 4, 5, 6, 7, 8]) == 6


@pytest.mark.parametrize(("first", "second"), [("a", "b"), (None, "a"), ("a", None)])
@pytest.mark.parametrize("runs_on", [False, True])
def test_past_of_another_salt_is_not_used(bench: Bench, first: str | None, second: str | None, runs_on: bool) -> None:
    prompt = list(range(20))
    assert bench.prefill(1, prompt, salt=first) == 0
    if not runs_on:
        bench.release(1)
    assert bench.slots.find(prompt, second) == bench.prefill(2, prompt, salt=second) == 0
    bench.release(2)
    assert [bench.acquire(3, prompt, salt=second), bench.acquire(4, prompt, salt=first)] == [18, 18]


def test_a_short_past_is_taken_over_but_not_copied() -> None:
    bench = Bench(min_copied=32)
    prompt = list(range(100, 140))
    bench.prefill(1, prompt)
    assert bench.acquire(2, [*prompt[:31], 7, 8, 9]) == 0
    assert bench.acquire(3, [*prompt[:32], 7, 8, 9]) == 32
    assert bench.match_again(2, [*prompt[:31], 7, 8, 9]) == 0
    bench.release(1)
    assert bench.acquire(4, [*prompt[:31], 4, 5, 6]) == 31
    assert [length for _, _, length in bench.buffers.copies] == [32]


def test_a_short_past_stays_in_the_only_slot_that_is_left() -> None:
    bench = Bench(1, min_copied=32)
    bench.prefill(1, list(range(40)))
    bench.release(1)
    assert bench.acquire(2, [*range(15), 90, 91, 92]) == 15


def test_tokens_read_by_another_are_copied_before_a_first_chunk_even_after_a_failure(bench: Bench) -> None:
    prompt = [1, 2, 3, 4, 5, 6]
    assert bench.acquire(1, prompt) == bench.acquire(2, [*prompt, 7]) == 0
    bench.read(1, prompt)
    bench.buffers.fails = True
    with pytest.raises(RunnerFailed):
        bench.match_again(2, [*prompt, 7])
    bench.check()
    assert bench.tokens(2) == []
    assert bench.match_again(2, [*prompt, 7]) == 5
    assert bench.tokens(2) == prompt[:5]
    assert bench.match_again(2, [*prompt, 7]) == 5


def test_a_sequence_whose_copy_fails_leaves_no_cached_prefix(bench: Bench) -> None:
    prompt = [1, 2, 3, 4, 5, 6]
    bench.prefill(1, prompt)
    bench.buffers.fails = True
    with pytest.raises(RunnerFailed):
        bench.acquire(2, prompt)
    bench.check()
    bench.release(2)
    assert bench.pasts() == []


def test_second_match_copies_longer_prefixes_from_idle_slots(bench: Bench) -> None:
    bench.leave_behind(1, [1, 2, 3])
    assert bench.acquire(2, [1, 2, 3, 4, 5, 6, 7, 8]) == 3
    bench.prefill(3, [1, 2, 3, 4, 5, 6])
    bench.release(3)
    assert bench.match_again(2, [1, 2, 3, 4, 5, 6, 7, 8]) == 6
    bench.read(2, [7, 8])
    assert bench.tokens(2) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_second_match_needs_the_same_salt(bench: Bench) -> None:
    prompt = [1, 2, 3, 4, 5, 6]
    bench.acquire(1, prompt, salt="a")
    bench.prefill(2, prompt, salt="b")
    assert bench.match_again(1, prompt) == 0
    bench.prefill(3, prompt, salt="a")
    assert bench.match_again(1, prompt) == 4


# memory that slots share


def shared_bench(num_pages: int) -> Bench:
    """Four slots with one page of four tokens each, and this number of shared pages."""
    return Bench(memory=KvMemory(4, num_pages))


def test_cached_prefixes_stay_until_their_memory_is_needed() -> None:
    bench = shared_bench(8)
    bench.leave_each(1, 2, 3, length=8)
    bench.acquire(4, [4] * 16)
    bench.read(4, [4] * 8)
    assert bench.pasts() == [[1] * 8, [2] * 8, [3] * 8]
    bench.read(4, [4] * 8)
    assert bench.pasts() == [[2] * 8, [3] * 8]


@pytest.mark.parametrize(
    ("salts", "length", "num_new", "left"),
    [
        pytest.param([None, None], 7, 8, [[1] * 8, [2] * 8], id="part of another"),
        pytest.param([None, None], 8, 4, [[1] * 8, [2] * 8], id="equal"),
        pytest.param(["a", None], 12, 4, [[2] * 8, [2] * 12], id="another salt and length"),
    ],
)
def test_cached_prefix_within_another_of_its_salt_is_evicted_first(
    salts: list[str | None], length: int, num_new: int, left: list[list[int]]
) -> None:
    bench = shared_bench(6)
    bench.leave_each(1, length=8)
    for sequence, salt, number in zip((2, 3), salts, (8, length), strict=True):
        bench.leave_behind(sequence, [2] * number, salt=salt)
    bench.prefill(4, [4] * num_new)
    assert bench.pasts() == left


def test_a_cached_prefix_that_was_copied_counts_as_used() -> None:
    bench = shared_bench(12)
    bench.leave_each(1, 2, length=20)
    assert bench.acquire(3, [1, 1, 1, 3, 3, 3]) == 3
    bench.read(3, [3] * 9)
    assert bench.pasts() == [[1] * 20]


def test_memory_behind_cached_tokens_is_freed_before_prefixes() -> None:
    bench = shared_bench(8)
    bench.leave_behind(1, [1] * 20)
    assert bench.acquire(2, [*[1] * 12, 5, 5]) == 12  # 8 tokens fewer
    bench.leave_behind(3, [3] * 8)
    assert bench.pasts() == [[3] * 8]
    bench.prefill(4, [4] * 12)
    assert bench.pasts() == [[3] * 8]


def test_cached_prefix_is_taken_over_without_memory_for_a_copy() -> None:
    bench = shared_bench(8)
    bench.leave_behind(1, list(range(30)))
    assert bench.acquire(2, [*range(10), 50, 51]) == 10
    assert bench.pasts() == []


def test_started_prompt_is_kept_without_memory_for_a_copy() -> None:
    bench = shared_bench(8)
    bench.acquire(1, [*range(10), 50, 51])
    bench.leave_behind(2, list(range(30)))
    assert bench.match_again(1, [*range(10), 50, 51]) == 0
    assert bench.pasts() == [list(range(30))]


# which slot is reused


def test_least_recently_used_past_is_evicted_first(bench: Bench) -> None:
    bench.leave_each(3, 1, 4, 2)
    assert bench.pasts() == [[3] * 4, [1] * 4, [4] * 4, [2] * 4]
    for sequence, left in ((11, [1, 4, 2]), (12, [4, 2]), (13, [2]), (14, [])):
        bench.prefill(sequence, [sequence] * 4)
        assert bench.pasts() == [[number] * 4 for number in left]


def test_empty_slot_is_used_before_any_past_is_evicted(bench: Bench) -> None:
    bench.leave_each(1, 2, 3)
    bench.acquire(4, [4] * 4)
    bench.release(4)  # removed before anything was read
    bench.prefill(7, [7] * 4)
    assert bench.pasts() == [[1] * 4, [2] * 4, [3] * 4]


def test_source_of_a_copy_is_not_evicted_for_it(bench: Bench) -> None:
    bench.leave_each(1, 2, 3, 4, length=20)
    assert bench.acquire(9, [1, 1, 1, 5, 5, 5]) == 3
    assert bench.pasts() == [[3] * 20, [4] * 20, [1] * 20]
    assert bench.tokens(9) == [1, 1, 1]


def test_last_free_slot_is_taken_over_for_any_common_past() -> None:
    bench = Bench(2)
    bench.leave_each(1, length=20)
    bench.prefill(2, [2] * 8)
    bench.prefill(3, [1, 1, 3, 3, 3])
    assert (bench.tokens(2), bench.tokens(3)) == ([2] * 8, [1, 1, 3, 3, 3])


def test_forget_empties_and_counts_idle_slots_only(bench: Bench) -> None:
    bench.leave_each(1, 2)
    bench.prefill(3, [3] * 4)
    assert bench.slots.forget() == 2
    bench.check()
    assert (bench.pasts(), bench.tokens(3)) == ([], [3] * 4)
    assert bench.slots.forget() == 0
    assert bench.acquire(4, [1] * 6) == 0


# low priority


def test_sequence_gets_its_slot_back_until_another_takes_it() -> None:
    bench = Bench(2)
    bench.leave_behind(1, [1, 2, 3, 4], [5])
    assert bench.slots.resume(1, is_long=True) is None
    assert bench.slots.resume(1) == 5
    assert bench.tokens(1) == [1, 2, 3, 4, 5]
    bench.release(1)
    for other in (2, 3):
        bench.prefill(other, [other] * 9)
    assert bench.slots.resume(1) is None
    bench.release(2)
    assert bench.slots.forget() == 1
    assert bench.slots.resume(2) is None


def test_prefixes_of_the_background_are_evicted_first() -> None:
    bench = Bench(2)
    bench.leave_each(1, length=9)
    bench.leave_each(2, length=9, tenant=None)
    bench.acquire(3, [3] * 9)
    assert bench.pasts() == [[1] * 9]


def test_recent_prefixes_of_others_are_kept_from_the_background(clock: HandClock) -> None:
    bench = Bench(memory=KvMemory(4, 100), clock=clock)
    for number in (1, 2, 3, 4):
        bench.prefill(number, [number] * 9, tenant=None if number == 4 else "")
    for number in (1, 3, 4):
        bench.release(number)
    assert bench.slots.reserved(9) == KvBudget(2, 4)
    assert bench.slots.reserved(1) == KvBudget(1, 2)
    clock.wait(299.0)
    bench.release(2)
    assert bench.slots.reserved(9) == KvBudget(3, 6)
    clock.wait(2.0)
    assert bench.slots.reserved(9) == KvBudget(1, 2)


def test_a_running_slot_is_cut_to_its_first_tokens(bench: Bench) -> None:
    bench.prefill(1, [5, 6, 7])
    before = bench.slots.of(1).tokens
    bench.slots.cut(1, 2)
    assert bench.tokens(1) == [5, 6]
    assert before == [5, 6, 7]  # others may still compare them


def test_cached_tokens_are_found_without_a_slot(bench: Bench) -> None:
    bench.prefill(1, [5, 6, 7, 8], salt="a")
    assert bench.slots.find([5, 6, 7, 9, 9], "a") == 3
    assert bench.slots.num_running == 1


def test_room_is_what_running_slots_leave() -> None:
    slots = Bench(2, memory=KvMemory(4, 3)).slots
    for sequence in (1, 2):
        slots.acquire(sequence, [sequence], salt=str(sequence))
        slots.reserve(sequence, 8 if sequence == 1 else 1)
    # Each has a page of its own, and the first one two of the three pages that both share.
    assert [slots.has_room(2, number) for number in (7, 8)] == [True, False]


# tenants


@pytest.mark.parametrize(
    ("num_slots", "num_pages", "sequences", "cached"),
    [
        pytest.param(4, None, ["b", *["a"] * 20], "b1 a19 a20 a21", id="own before those of another tenant"),
        pytest.param(4, None, ["b", "b", "a", "a", "a"], "b1 b2 a4 a5", id="beyond its own share"),
        # The share of c is one slot: it gets the oldest of those beyond the share of b.
        pytest.param(4, None, ["b", "b", "a", "a", "a", "c"], "b2 a4 a5 c6", id="a third tenant has its share"),
        pytest.param(4, None, ["b", "b", "a", "a", 301.0, "a", "a", "a"], "a4 a6 a7 a8", id="not used recently"),
        pytest.param(4, None, ["b", "a", "A", "A"], "b1 a2", id="running sequences within the share"),
        pytest.param(4, None, ["b", "a", "A", "A", "A"], "b1", id="running sequences count in the share"),
        pytest.param(4, 8, ["a" * 2, "b" * 5], "a1 b2", id="memory that is enough"),
        pytest.param(4, 8, ["a" * 2, "b" * 5, "a" * 2], "a1 a3", id="more memory than the share"),
        pytest.param(8, 8, ["b" * 4, *["a" * 2] * 4], "b1 a4 a5", id="memory of a tenant beyond its share"),
    ],
)
def test_prefixes_beyond_the_share_of_their_tenant_are_evicted_first(
    num_slots: int, num_pages: int | None, sequences: list[str | float], cached: str, clock: HandClock
) -> None:
    """Sequences of a tenant with a letter for each four tokens run one after another; capital ones do not end. Between
    them, time may pass.
    """
    bench = Bench(num_slots, memory=UNSHARED if num_pages is None else KvMemory(4, num_pages), clock=clock)
    for number, each in enumerate(sequences, 1):
        if isinstance(each, float):
            clock.wait(each)
            continue
        bench.prefill(number, [number] * 4 * len(each), tenant=each[0].lower())
        if each.islower():
            bench.release(number)
    assert " ".join(f"{slot.tenant}{slot.tokens[0]}" for slot in bench.idle()) == cached
