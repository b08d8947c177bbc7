"""How places of a text are found, and which answers are kept for drafts, in how much memory."""

import gc
import random
import tracemalloc

import pytest

from genai_server.engine.scheduling import drafts
from genai_server.engine.scheduling.drafts import GAP, MAX_MATCH, AnswerMemory, Segment, TextIndex


def found(index: TextIndex, end: list[int], number: int = 3) -> list[int] | None:
    """What follows the longest match."""
    match = index.longest_match(end[-MAX_MATCH:])
    return None if match is None else index.following(match, number)


def common(text: list[int], place: int, end: list[int]) -> int:
    length = 0
    while length < min(MAX_MATCH, len(end), place + 1) and text[place - length] == end[-1 - length]:
        length += 1
    return length


@pytest.mark.parametrize("gram", [2, 4])
def test_longest_match_is_found_wherever_it_is(gram: int) -> None:
    chance = random.Random(gram)
    text = chance.choices(range(60 if gram == 2 else 7), k=3000)
    index = TextIndex(gram)
    index.add(text)
    for _ in range(100):
        place = chance.randrange(20, 2900)
        end = [*chance.choices(range(60), k=5), *text[place - chance.randrange(1, 20) : place]]
        longest = max(common(text, other, end) for other in range(len(text) - 1))
        match = index.longest_match(end[-MAX_MATCH:])
        if longest < gram:
            assert match is None
        elif longest > gram + 2:  # of shorter ones only the last are compared
            assert match is not None
            assert match.length == longest


@pytest.mark.parametrize("gram", [2, 4])
@pytest.mark.parametrize("vocab", [3, 40, 10**5])
def test_matches_are_independent_of_how_tokens_arrive(gram: int, vocab: int) -> None:
    chance = random.Random(vocab)
    text = [chance.randrange(-1, vocab) for _ in range(900)]
    one_by_one, in_parts, at_once = (TextIndex(gram, 2 * len(text)) for _ in range(3))
    for token in text:
        one_by_one.add([token])
    for start in range(0, len(text), 150):
        in_parts.add(text[start : start + 150])
    at_once.add(text)
    for place in range(20, len(text)):
        end = text[place - MAX_MATCH : place]
        assert found(one_by_one, end) == found(in_parts, end) == found(at_once, end)


def test_last_of_equal_matches_is_found_unless_one_is_followed() -> None:
    index = TextIndex(2)
    index.add([1, 2, 3, 10, 1, 2, 4, 11, 1, 2, 5, 12])
    assert found(index, [1, 2], 1) == [5]
    match = index.longest_match([10, 1, 2])
    assert match is not None
    assert index.following(match, 1) == [4]
    again = index.longest_match([1, 2], match)
    assert again is not None
    assert index.following(again, 1) == [4]


def test_text_goes_on_from_segment_to_segment() -> None:
    text = random.Random(1).sample(range(10**6), 5000)
    index = TextIndex(4)
    for start in range(0, len(text), 7):
        index.add(text[start : start + 7])
    for place in range(8, len(text) - 8):
        following = found(index, text[place - 8 : place], 3)
        # At the end of a segment the beginning of the next one is found.
        assert following == text[place : place + 3]


def test_nothing_is_found_across_gaps_and_images() -> None:
    index = TextIndex(2)
    index.add([1, 2, 3, GAP, 4, 5, -700_000_000_000, 6, 7, 8])
    assert found(index, [1, 2], 9) == [3]
    assert found(index, [2, 3]) is None
    assert found(index, [4, 5]) is None
    assert found(index, [3, GAP]) is None
    assert found(index, [6, 7], 4) == [8, 8, 8, 8]  # the text's end, which repeats
    match = index.longest_match([5, -700_000_000_000, 6, 7])
    assert match is not None
    assert match.length == 2


def test_dropped_text_is_neither_found_nor_followed() -> None:
    old, new = list(range(1000, 1256)), list(range(2000, 2256))
    index = TextIndex(2)
    index.add(old)
    followed = index.longest_match(old[:9])
    index.add(new)
    assert found(index, old[:9]) == old[9:12]
    assert index.drop_oldest()
    assert found(index, old[:9]) is None
    assert index.longest_match(old[:9], followed) is None
    assert found(index, new[:20]) == new[20:23]
    assert not index.drop_oldest()


def test_a_long_text_has_few_segments() -> None:
    before = sum(isinstance(found, Segment) for found in gc.get_objects())
    index = TextIndex(4, max_segment=1 << 17)
    for _ in range(500):
        index.add([3] * 2000)
    segments = sum(isinstance(found, Segment) for found in gc.get_objects()) - before
    assert segments < 20
    assert 12 * 10**6 <= index.num_bytes < 14 * 10**6


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
    for number, name in enumerate(("alice", "bob")):
        memory.add(name, [1], an_answer(number))
    found = [[keeps(memory, name, an_answer(number)) for number in (0, 1)] for name in ("alice", "bob", "carol")]
    assert found == [[True, False], [False, True], [False, False]]


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
    assert (keeps(memory, "alice", an_answer(1, 10_000)), memory.num_bytes) == (False, 0)


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
        now, most = tracemalloc.get_traced_memory()
        traces = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    # Threads of servers that other tests share may allocate memory meanwhile.
    own = traces.filter_traces([tracemalloc.Filter(True, path) for path in (drafts.__file__, __file__)])
    used = sum(trace.size for trace in own.traces)
    assert 800_000 < memory.num_bytes <= 1_000_000
    assert 0.9 * memory.num_bytes < used < 1.02 * memory.num_bytes
    assert most - now < 400_000
