"""Which answers are kept for drafts, and in how much memory."""

import random
import tracemalloc

import pytest

from genai_server.engine.scheduling.answer_memory import AnswerMemory

MANY = 10**8


def an_answer(seed: int, num_tokens: int = 100) -> list[int]:
    return random.Random(seed).sample(range(10**6), num_tokens)


def keeps(memory: AnswerMemory, name: str, answer: list[int]) -> bool:
    """Whether a name's text has all of an answer, as far as answers differ. The name counts as used."""
    text = memory.of(name)()
    match = None if text is None else text.longest_match(answer[-10:-1])
    return text is not None and match is not None and text.following(match, 9) == answer[-1:]


def test_each_name_has_answers_of_its_own() -> None:
    memory = AnswerMemory(MANY)
    memory.add("alice", [1], an_answer(1))
    memory.add("bob", [1], an_answer(2))
    assert keeps(memory, "alice", an_answer(1))
    assert keeps(memory, "bob", an_answer(2))
    assert not keeps(memory, "alice", an_answer(2))
    assert not keeps(memory, "bob", an_answer(1))
    assert not keeps(memory, "carol", an_answer(1))


def test_name_used_least_recently_loses_its_answers() -> None:
    memory = AnswerMemory(3 * 5_000)
    for number, name in enumerate(("alice", "bob", "carol")):
        memory.add(name, [1], an_answer(number))
    assert keeps(memory, "alice", an_answer(0))  # used again
    memory.add("dave", [1], an_answer(3))
    assert not keeps(memory, "bob", an_answer(1))
    assert all(keeps(memory, name, an_answer(n)) for n, name in ((0, "alice"), (2, "carol"), (3, "dave")))


def test_oldest_answers_of_a_name_are_dropped_first() -> None:
    memory = AnswerMemory(60_000)
    for number in range(100):
        memory.add("alice", [1], an_answer(number))
    kept = [keeps(memory, "alice", an_answer(number)) for number in range(100)]
    assert kept == sorted(kept)
    assert 30 <= sum(kept) < 50  # of 4,900 tokens


def test_full_memory_keeps_most_of_its_tokens() -> None:
    memory = AnswerMemory(500_000)
    added = [an_answer(number, 400) for number in range(400)]
    for number, answer in enumerate(added):
        memory.add("alice", [1], answer)
        if number > 150:
            oldest = number - int(0.7 * 500_000 / 12 / 401)
            assert keeps(memory, "alice", added[oldest])


def test_answer_larger_than_the_memory_is_not_kept() -> None:
    memory = AnswerMemory(50_000)
    memory.add("alice", [1], an_answer(1, 10_000))
    assert not keeps(memory, "alice", an_answer(1, 10_000))
    assert memory.num_bytes == 0


def test_cleared_memory_is_empty_and_usable() -> None:
    memory = AnswerMemory(MANY)
    memory.add("alice", [1], an_answer(1))
    find = memory.of("alice")
    memory.clear()
    assert (memory.num_bytes, find()) == (0, None)
    memory.add("alice", [1], an_answer(2))
    assert find() is not None
    assert not keeps(memory, "alice", an_answer(1))


@pytest.mark.parametrize(("num_names", "num_tokens"), [(1, 900), (30, 300), (1000, 20)])
def test_stated_bytes_are_those_that_are_used(num_names: int, num_tokens: int) -> None:
    answers = [an_answer(number, num_tokens) for number in range(20)]
    tracemalloc.start()
    try:
        memory = AnswerMemory(1_000_000)
        for number in range(600):
            memory.add(f"{number % num_names:032x}", [1], answers[number % 20])
        used, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 800_000 < memory.num_bytes <= 1_000_000
    assert 0.9 * memory.num_bytes < used < 1.02 * memory.num_bytes
    assert most < 1_500_000
