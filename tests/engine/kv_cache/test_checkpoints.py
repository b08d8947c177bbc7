"""State checkpoints of KV cache slots: where prefixes can be reused, and what the checkpoints cost."""

import random
from itertools import pairwise
from typing import cast

import pytest

from genai_server.engine.kv_cache.buffers import RowStates, before_checkpoint, ends_at_checkpoint
from genai_server.engine.kv_cache.kv_slots import KvSlots
from genai_server.engine.scheduling.scheduler_output import KvMemory
from genai_server.errors import RunnerFailed
from tests.engine.kv_cache.no_buffers import NoBuffers

PAGE, CHECKPOINT_PAGES = 4, 2


class TokenStates:
    """States that are the tokens which they come from."""

    state_size_in_tokens = 10

    def __init__(self, num_rows: int) -> None:
        self.rows: list[list[int]] = [[-1] for _ in range(num_rows)]

    def clear(self, row: int) -> None:
        self.rows[row] = []

    def save(self, row: int) -> list[int]:
        return list(self.rows[row])

    def load(self, row: int, saved: list[int]) -> None:
        self.rows[row] = list(saved)

    def copy(self, source: int, target: int) -> None:
        self.load(target, self.rows[source])


class Bench:
    """Slots with states, and the actions of a runner on them."""

    def __init__(self, num_slots: int = 3, num_pages: int = 1000) -> None:
        self.states, self.buffers = TokenStates(num_slots), NoBuffers()
        self.memory = KvMemory(PAGE, num_pages, CHECKPOINT_PAGES)
        states = cast(RowStates, self.states)
        self.slots = KvSlots(num_slots, self.buffers, memory=self.memory, states=states)

    def open(self, sequence: int, prompt: list[int]) -> int:
        length = self.slots.acquire(sequence, prompt)
        self.check(sequence, prompt[:length])
        return length

    def read_first(self, num_tokens: int, number: int, *, checkpoint: int | None = 1) -> None:
        """Open the first sequence, with a prompt of `num_tokens`, and read the first ones of these."""
        self.open(0, tokens(num_tokens))
        self.read(0, tokens(number), checkpoint=checkpoint)

    def check(self, sequence: int, tokens: list[int]) -> None:
        slot = self.slots.of(sequence)
        assert slot.tokens == tokens == self.states.rows[slot.index]
        for slot in self.slots.slots:
            assert all(saved == slot.tokens[:length] for length, saved in slot.checkpoints.items())

    def read(self, sequence: int, tokens: list[int], *, checkpoint: int | None = None) -> None:
        """Read tokens, with a checkpoint behind them if a spacing is given."""
        self.slots.reserve(sequence, len(tokens))
        slot = self.slots.of(sequence)
        self.states.rows[slot.index] += tokens
        self.slots.append(sequence, tokens)
        if checkpoint is not None:
            self.slots.checkpoint(sequence, spacing=checkpoint)
        self.check(sequence, slot.tokens)

    def lengths(self, sequence: int) -> list[int]:
        return sorted(self.slots.of(sequence).checkpoints)


def tokens(length: int, first: int = 0) -> list[int]:
    return list(range(first, first + length))


@pytest.mark.parametrize("chunk", [16, 64, 128])
def test_prompt_from_32_tokens_has_a_checkpoint_near_its_end(chunk: int) -> None:
    for length in range(32, 300):
        left = length
        at: list[int] = []
        while left:
            left -= before_checkpoint(min(chunk, left), left)
            at += [left] if left and ends_at_checkpoint(left) else []
        assert at, length


def test_short_prompt_is_read_at_once() -> None:
    assert [before_checkpoint(length, length) for length in range(1, 32)] == list(range(1, 32))


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_prefix_without_a_checkpoint_is_not_reused(bench: Bench) -> None:
    bench.read_first(30, 30, checkpoint=None)
    bench.slots.release(0)
    assert bench.open(1, [*tokens(25), *tokens(10, 100)]) == 0


@pytest.mark.parametrize("common", [20, 25, 29])
def test_the_longest_checkpoint_in_the_common_prefix_is_reused(bench: Bench, common: int) -> None:
    bench.read_first(40, 10, checkpoint=10)
    for first in (10, 20, 30):
        bench.read(0, tokens(10, first), checkpoint=10)
    assert bench.lengths(0) == [10, 20, 30, 40]
    bench.slots.release(0)
    assert bench.open(1, [*tokens(common), *tokens(10, 100)]) == 20


def test_a_running_sequence_gives_its_checkpoint(bench: Bench) -> None:
    bench.read_first(30, 20)
    bench.read(0, tokens(10, 20))
    assert bench.open(1, tokens(30)) == 20
    bench.open(2, tokens(5, 100))
    bench.read(1, tokens(10, 20))


def test_new_checkpoint_is_found_before_the_first_chunk(bench: Bench) -> None:
    bench.open(1, tokens(30))
    bench.read_first(30, 20)
    assert bench.slots.match_again(1, tokens(30)) == 20
    bench.check(1, tokens(20))


def test_a_failed_copy_leaves_an_empty_slot(bench: Bench) -> None:
    bench.read_first(60, 20)
    bench.read(0, tokens(40, 20))
    bench.buffers.fails = True
    with pytest.raises(RunnerFailed):
        bench.slots.acquire(1, tokens(30))
    bench.check(1, [])


def test_close_checkpoints_are_thinned_out(bench: Bench) -> None:
    bench.open(0, tokens(100))
    for first in range(0, 48, 3):
        bench.read(0, tokens(3, first), checkpoint=1)
    *kept, last = bench.lengths(0)
    assert (kept[-1], last) == (45, 48)
    assert all(later - earlier >= TokenStates.state_size_in_tokens for earlier, later in pairwise(kept))


def test_the_checkpoint_of_a_common_beginning_is_kept(bench: Bench) -> None:
    bench.read_first(60, 60, checkpoint=None)
    bench.open(1, [*tokens(25), *tokens(60, 100)])
    bench.read(1, tokens(24), checkpoint=1)
    for first in range(100, 130, 3):
        bench.read(1, tokens(3, first), checkpoint=1)
    assert 24 in bench.lengths(1)
    assert bench.open(2, [*tokens(25), *tokens(10, 200)]) == 24
    assert bench.lengths(2) == [24]


def test_a_checkpoint_is_left_out_where_another_is_close(bench: Bench) -> None:
    bench.read_first(100, 10, checkpoint=10)
    bench.read(0, tokens(9, 10), checkpoint=10)
    assert bench.lengths(0) == [10]


def test_a_failed_pass_makes_a_slot_forget_its_tokens(bench: Bench) -> None:
    bench.read_first(30, 20)
    bench.slots.discard_after_failure(0)
    bench.slots.release(0)
    assert bench.open(1, tokens(30)) == 0


def test_checkpoints_take_no_memory_of_running_sequences() -> None:
    short, growing = Bench(num_pages=10), Bench(num_pages=10)
    short.read_first(38, 37)  # of 10 pages it needs 9
    assert short.lengths(0) == []
    growing.read_first(40, 20)
    assert growing.lengths(0) == [20]
    growing.read(0, tokens(19, 20))
    assert growing.lengths(0) == []


def test_sequences_have_the_states_of_their_tokens() -> None:
    chance = random.Random(3)
    bench = Bench(num_slots=4, num_pages=60)
    running: dict[int, list[int]] = {}
    prompts = [[chance.randrange(2) for _ in range(4)] + tokens(60, 10 * number) for number in range(6)]
    for number in range(600):
        if len(running) < 4 and chance.random() < 0.6:
            kept = chance.choice(prompts)
            prompt = [*kept[: chance.randint(3, 60)], *tokens(2, 1000 + number)]
            length = bench.open(number, prompt)
            running[number] = prompt[length:]
        for sequence in list(running):
            chunk, running[sequence] = running[sequence][:20], running[sequence][20:]
            if chunk:
                bench.read(sequence, chunk, checkpoint=chance.choice([None, 1, 10]))
            elif chance.random() < 0.3:
                bench.slots.release(sequence)
                del running[sequence]
            else:
                bench.read(sequence, [2000 + number])
