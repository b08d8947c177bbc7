"""When a draft model drafts, and for which sequences: with a model whose passes take a given time."""

from collections import abc

import pytest

from genai_server.engine.scheduling.drafts import MAX_LENGTH, NO_DRAFT, Draft, TextDrafts
from genai_server.engine.scheduling.speculation import Speculation
from genai_server.engine.scheduling.step_time import MIN_CHUNK, StepTimeModel
from genai_server.engine.sequence import Sequence
from tests.engine.scheduling.scheduled import a_sequence

# Seconds of a step of one token, and of each further token.
STEP, FURTHER = 1.0, 0.05


class TimedModel:
    """A draft model that drafts sevens. A pass takes `per_pass` seconds, and a token of a prompt `per_token`."""

    def __init__(
        self, per_pass: float = 0.1, per_token: float = 0.001, most: int = 10**6, *, is_parallel: bool = False
    ) -> None:
        self.times = StepTimeModel()
        self.is_parallel = is_parallel
        for number in (1, 64):
            self.times.passed(number, number, per_pass)
        self.times.passed(0, 1000, 1000 * per_token)
        self.most = most
        self.unread: dict[Sequence, int] = {}
        self.passes: list[tuple[list[tuple[Sequence, int]], list[tuple[Sequence, int]]]] = []
        self.closed: list[int] = []

    def room(self, sequence: Sequence) -> int:
        return self.most

    def num_unread(self, sequence: Sequence) -> int:
        return self.unread.get(sequence, 1)

    def propose(
        self, wanted: abc.Sequence[tuple[Sequence, int]], chunks: abc.Sequence[tuple[Sequence, int]]
    ) -> list[list[int]]:
        self.passes.append((list(wanted), list(chunks)))
        for sequence, number in chunks:
            self.unread[sequence] -= number
        return [[7] * length for _, length in wanted]

    def close(self, sequence: int) -> None:
        self.closed.append(sequence)


def times(further: float = FURTHER) -> StepTimeModel:
    found = StepTimeModel()
    for number in range(64, 0, -1):
        found.passed(number, number, STEP + further * (number - 1))
    return found


def a_batch(number: int = 1, num_prompt: int = 30) -> list[Sequence]:
    return [a_sequence(f"{index}", num_prompt, decoding=True, batched=True) for index in range(number)]


def drafting(model: TimedModel) -> Speculation:
    speculation = Speculation(128)
    speculation.model = model
    return speculation


def choose(speculation: Speculation, batch: list[Sequence], steps: StepTimeModel | None = None) -> list[list[int]]:
    found = speculation.choose(batch, [True] * len(batch), steps or times())
    return [list(tokens) for tokens in found]


def learn(speculation: Speculation, batch: list[Sequence], num_accepted: int, number: int = 20) -> None:
    """Learn the acceptance of drafts of three tokens, the first of which the model makes now."""
    assert all(choose(speculation, batch))
    for sequence in batch * number:
        speculation.count(sequence, 3, num_accepted)


@pytest.fixture(autouse=True)
def given(monkeypatch: pytest.MonkeyPatch) -> dict[str, Draft]:
    """By requests, the drafts from texts; none without one."""
    found: dict[str, Draft] = {}

    def propose(self: TextDrafts, tokens: list[int], k: int, forced: abc.Sequence[int] = ()) -> Draft:
        return found.get(f"{len(tokens)}", NO_DRAFT)

    monkeypatch.setattr(TextDrafts, "propose", propose)
    return found


def test_model_drafts_where_it_is_expected_to_pay() -> None:
    model = TimedModel()
    drafts = drafting(model)
    (found,) = choose(drafts, batch := a_batch())
    assert 1 < len(found) < 15
    assert model.passes == [([(batch[0], len(found))], [])]
    assert batch[0] in drafts._drafted


def test_more_is_drafted_the_more_is_accepted() -> None:
    batch = a_batch()
    lengths = []
    for num_accepted in (1, 2, 3):
        drafts = drafting(TimedModel())
        learn(drafts, batch, num_accepted)
        lengths.append(len(choose(drafts, batch)[0]))
    assert lengths == sorted(set(lengths))


@pytest.mark.parametrize(("per_pass", "further"), [(1.0, FURTHER), (0.1, 1.0)])
def test_model_does_not_draft_where_passes_take_too_long(per_pass: float, further: float) -> None:
    model = TimedModel(per_pass)
    assert choose(drafting(model), a_batch(), steps=times(further)) == [[]]
    assert model.passes == []


def test_large_batch_is_not_drafted_for() -> None:
    steps = times(0.5)
    assert choose(drafting(TimedModel()), a_batch(1), steps=times(0.05)) != [[]]
    assert choose(drafting(TimedModel()), a_batch(32), steps=steps) == [[]] * 32


def test_draft_comes_from_the_source_that_is_expected_to_be_better(given: dict[str, Draft]) -> None:
    drafts = drafting(TimedModel(0.01))
    batch = [*a_batch(1, 30), *a_batch(1, 40)]
    given |= {"31": Draft([1] * 10, 0.95), "41": Draft([2] * 10, 0.2)}
    found = choose(drafts, batch)
    assert [set(tokens) for tokens in found] == [{1}, {7}]
    for sequence, tokens in zip(batch, found, strict=True):
        drafts.count(sequence, len(tokens), 0)  # of the first one, the model learns nothing
    assert [set(tokens) for tokens in choose(drafts, batch)][0] == {1}


def test_texts_are_drafted_from_without_a_draft_model(given: dict[str, Draft]) -> None:
    given["31"] = Draft([1] * 10, 0.95)
    batch = a_batch()
    assert 1 < len(choose(Speculation(128), batch)[0]) <= 10
    assert choose(Speculation(128), batch, times(1.0)) == [[]]
    assert choose(Speculation(128), batch, StepTimeModel()) == [[]]  # nothing is known of passes
    assert Speculation(128).choose(batch, [False], times()) == [()]


def test_sequences_without_drafts_are_left_out() -> None:
    batch = a_batch(2)
    found = drafting(TimedModel(0.01)).choose(batch, [False, True], times())
    assert [bool(tokens) for tokens in found] == [False, True]
    assert choose(drafting(TimedModel(most=0)), batch) == [[], []]


def test_draft_leaves_the_last_token_to_the_step() -> None:
    (sequence,) = batch = a_batch()
    while sequence.num_left > 1:
        assert len(choose(drafting(TimedModel(0.0)), batch)[0]) < sequence.num_left
        sequence.append(5)
    assert choose(drafting(TimedModel(0.0)), batch) == [[]]


def test_unread_prompt_is_read_in_chunks_before_drafts() -> None:
    model = TimedModel(per_token=0.0001)
    drafts = drafting(model)
    (sequence,) = batch = a_batch(num_prompt=299)
    model.unread[sequence] = 300
    while not choose(drafts, batch)[0]:
        assert len(model.passes) < 10
    assert [chunks for _, chunks in model.passes] == [[(sequence, 128)], [(sequence, 128)], [(sequence, 43)], []]


def test_chunks_take_about_as_long_as_the_step() -> None:
    model = TimedModel(per_token=0.01)
    (sequence,) = batch = a_batch(num_prompt=499)
    drafts = drafting(model)
    sequence.max_length = 10**6
    model.unread[sequence] = 300
    choose(drafts, batch)
    assert model.passes == [([], [(sequence, 100)])]
    for _ in range(5):
        model.times.passed(0, 1, 0.2)
    choose(drafts, batch)
    assert model.passes[-1] == ([], [(sequence, MIN_CHUNK)])


def test_prompt_is_not_read_for_a_short_answer() -> None:
    model = TimedModel(per_token=1.0)
    (sequence,) = batch = a_batch(num_prompt=99)
    model.unread[sequence] = 100
    assert choose(drafting(model), batch) == [[]]
    assert model.passes == []


def test_prompts_are_read_together() -> None:
    model = TimedModel(per_token=0.0001)
    batch = a_batch(3)
    model.unread = dict.fromkeys(batch, 31)
    choose(drafting(model), batch)
    assert model.passes == [([], [(sequence, 30) for sequence in batch])]


@pytest.mark.parametrize("is_parallel", [False, True])
def test_tokens_of_a_draft_that_was_accepted_are_read_with_the_next_one(*, is_parallel: bool) -> None:
    """A model that drafts in parallel has not read its drafts: the longest, and the token after it."""
    model = TimedModel(per_token=0.0001, is_parallel=is_parallel)
    drafts = drafting(model)
    for num_unread, is_drafted in ((2, True), (3, is_parallel), (MAX_LENGTH + 1, is_parallel), (MAX_LENGTH + 2, False)):
        (sequence,) = batch = a_batch()
        model.unread[sequence] = num_unread
        assert bool(choose(drafts, batch)[0]) == is_drafted
        assert model.passes[-1][1] == ([] if is_drafted else [(sequence, num_unread - 1)])


def test_parallel_drafts_are_longer_because_they_take_one_pass() -> None:
    chain, parallel = (choose(drafting(TimedModel(is_parallel=each)), a_batch())[0] for each in (False, True))
    assert 0 < len(chain) < len(parallel)


def test_new_sequences_begin_with_the_acceptance_of_earlier_ones() -> None:
    model = TimedModel()
    drafts = drafting(model)
    learn(drafts, a_batch(), 0)
    model.passes.clear()
    other = a_batch()
    model.unread[other[0]] = 31
    assert choose(drafts, other) == [[]]
    assert model.passes == []


def test_text_that_cannot_be_drafted_is_drafted_again_after_a_while() -> None:
    """Right drafts are then found, and wrong ones take a small share of the time."""
    lengths: dict[int, list[int]] = {}
    for num_accepted in (0, 1):
        drafts = drafting(TimedModel())
        (sequence,) = batch = a_batch()
        sequence.max_length = 10**6
        learn(drafts, batch, 0)
        lengths[num_accepted] = []
        for _ in range(300):
            (tokens,) = choose(drafts, batch)
            lengths[num_accepted].append(len(tokens))
            if tokens:
                drafts.count(sequence, len(tokens), num_accepted * len(tokens))
    seconds = 0.1 + FURTHER
    assert 0 < sum(lengths[0]) * seconds < 0.02 * 300 * STEP
    assert max(lengths[0]) == 1
    assert lengths[1][0] == 0
    assert lengths[1][-1] == MAX_LENGTH


@pytest.mark.parametrize("failing", ["propose", "room"])
def test_failed_model_is_left_out_for_its_sequences(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failing: str
) -> None:
    model = TimedModel()
    drafts = drafting(model)
    batch = a_batch(2)

    def fail(*asked: object) -> list[list[int]]:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(model, failing, fail)
        assert choose(drafts, batch) == [[], []]
        assert choose(drafts, batch) == [[], []]
    assert caplog.text.count("the draft model failed") == 1
    assert model.closed == [sequence.id for sequence in batch]
    assert choose(drafts, batch) == [[], []]
    assert choose(drafts, a_batch()) != [[]]
