"""When a draft model drafts, and for which sequences: with a model whose passes take a given time."""

from collections.abc import Sequence as Several

import pytest

from genai_server.engine.scheduling.drafts import NO_DRAFT, Draft
from genai_server.engine.scheduling.model_drafts import ModelDrafts
from genai_server.engine.scheduling.step_time import MIN_CHUNK, StepTimeModel
from genai_server.engine.sequence import Sequence
from tests.engine.scheduling.scheduled import a_sequence

# Seconds of a step of one token, and of each further token.
STEP, FURTHER = 1.0, 0.05


class TimedModel:
    """A draft model that drafts sevens. A pass takes `per_pass` seconds, and a token of a prompt `per_token`."""

    def __init__(self, per_pass: float = 0.1, per_token: float = 0.001, most: int = 10**6) -> None:
        self.times = StepTimeModel()
        for number in (1, 64):
            self.times.passed(number, number, per_pass)
        self.times.passed(0, 1000, 1000 * per_token)
        self.most = most
        self.seconds = 0.0
        self.unread: dict[Sequence, int] = {}
        self.passes: list[tuple[list[tuple[Sequence, int]], list[tuple[Sequence, int]]]] = []
        self.closed: list[int] = []
        self.asked: list[Sequence] = []

    def room(self, sequence: Sequence) -> int:
        return self.most

    def num_unread(self, sequence: Sequence) -> int:
        self.asked.append(sequence)
        return self.unread.get(sequence, 1)

    def draft(self, wanted: Several[tuple[Sequence, int]], chunks: Several[tuple[Sequence, int]]) -> list[list[int]]:
        self.passes.append((list(wanted), list(chunks)))
        for sequence, number in chunks:
            self.unread[sequence] -= number
        self.seconds += self.times.seconds_to_read(sum(number for _, number in chunks))
        self.seconds += max((length for _, length in wanted), default=0) * self.times.seconds(1)
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


def drafting(model: TimedModel) -> ModelDrafts:
    return ModelDrafts(model, 128, lambda: model.seconds)


def choose(
    drafts: ModelDrafts, batch: list[Sequence], given: list[Draft] | None = None, steps: StepTimeModel | None = None
) -> list[list[int]]:
    found = drafts.choose(batch, given or [NO_DRAFT] * len(batch), [True] * len(batch), steps or times())
    return [[]] * len(batch) if found is None else [list(tokens) for tokens in found]


def learn(drafts: ModelDrafts, sequence: Sequence, num_accepted: int, number: int = 20) -> None:
    """Learn the acceptance of drafts of three tokens."""
    for _ in range(number):
        drafts.count(sequence, 3, num_accepted)


def test_model_drafts_where_it_is_expected_to_pay() -> None:
    model = TimedModel()
    drafts = drafting(model)
    (found,) = choose(drafts, batch := a_batch())
    assert 1 < len(found) < 15
    assert model.passes == [([(batch[0], len(found))], [])]
    assert drafts.has_drafted(batch[0])


def test_more_is_drafted_the_more_is_accepted() -> None:
    batch = a_batch()
    lengths = []
    for num_accepted in (1, 2, 3):
        drafts = drafting(TimedModel())
        learn(drafts, batch[0], num_accepted)
        lengths.append(len(choose(drafts, batch)[0]))
        batch[0].model_acceptance = None
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


def test_given_draft_is_kept_if_it_is_expected_to_be_better() -> None:
    drafts = drafting(TimedModel(0.01))
    batch = a_batch(2)
    good, bad = Draft([1] * 10, 0.95), Draft([2] * 10, 0.2)
    found = choose(drafts, batch, [good, bad])
    assert set(found[0]) == {1}
    assert set(found[1]) == {7}
    assert [drafts.has_drafted(sequence) for sequence in batch] == [False, True]


def test_given_draft_that_is_due_is_left_to_be_tried() -> None:
    model = TimedModel()
    drafts = drafting(model)
    assert drafts.choose(a_batch(), [Draft([2], 0.1, is_due=True)], [True], times()) is None
    assert model.passes == []


def test_sequences_without_drafts_are_left_out() -> None:
    model = TimedModel()
    batch = a_batch(2)
    drafts = drafting(model)
    learn(drafts, batch[1], 3)
    costly_row = StepTimeModel()
    for number in (64, 2, 1):
        costly_row.passed(number, number, min(number, 2))
    found = drafts.choose(batch, [NO_DRAFT, NO_DRAFT], [False, True], costly_row)
    assert found is not None
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


def test_new_sequences_begin_with_the_acceptance_of_earlier_ones() -> None:
    model = TimedModel()
    drafts = drafting(model)
    learn(drafts, a_batch()[0], 0)
    other = a_batch()
    model.unread[other[0]] = 31
    assert choose(drafts, other) == [[]]
    assert model.passes == []


def test_hopeless_sequences_are_not_asked_in_each_step() -> None:
    model = TimedModel()
    drafts = drafting(model)
    (sequence,) = batch = a_batch()
    learn(drafts, sequence, 0, 100)
    for _ in range(16):
        choose(drafts, batch)
    assert model.asked == [sequence] * 2


def test_trials_take_a_hundredth_of_the_time() -> None:
    model = TimedModel()
    drafts = drafting(model)
    (sequence,) = batch = a_batch()
    learn(drafts, sequence, 0, 100)
    sequence.max_length = 10**6
    spent, steps = 0.0, 1000
    for _ in range(steps):
        (tokens,) = choose(drafts, batch)
        assert len(tokens) <= 1
        if tokens:
            drafts.count(sequence, 1, 0)
            spent += 0.1 + FURTHER
        drafts.passed(STEP)
        sequence.append(5)
    assert 0 < spent <= 0.01 * STEP * steps


def test_trial_reads_the_prompt_from_what_was_saved() -> None:
    model = TimedModel(per_token=0.001)
    drafts = drafting(model)
    learn(drafts, a_batch()[0], 0, 100)
    (sequence,) = batch = a_batch(num_prompt=500)
    model.unread[sequence] = 501
    num_steps = 0
    while not model.passes:
        choose(drafts, batch)
        drafts.passed(STEP)
        num_steps += 1
    assert num_steps * STEP * 0.01 >= 0.5
    while not choose(drafts, batch)[0]:
        drafts.passed(STEP)
    assert len(model.passes) == 5  # one for each chunk, and one for the draft


def test_accepted_trials_pay_for_further_ones() -> None:
    drafts = drafting(TimedModel())
    (sequence,) = batch = a_batch()
    sequence.max_length = 10**6
    learn(drafts, sequence, 0, 100)
    while not choose(drafts, batch)[0]:
        drafts.passed(STEP)
        sequence.append(5)
    lengths = []
    for _ in range(10):
        drafts.count(sequence, 1, 1)
        sequence.append(7)
        lengths.append(len(choose(drafts, batch)[0]))
    assert min(lengths) > 0
    assert lengths[-1] > 1


def test_error_in_the_choice_of_drafts_costs_the_drafts_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(sequence: Sequence) -> int:
        raise IndexError("of the policy")

    model = TimedModel()
    drafts, batch = drafting(model), a_batch(2)
    with monkeypatch.context() as patch:
        patch.setattr(model, "room", fail)
        assert choose(drafts, batch) == [[], []]
        assert choose(drafts, batch) == [[], []]
    drafts.passed(STEP)
    assert not drafts.has_drafted(batch[0])
    assert caplog.text.count("IndexError: of the policy") == 1
    (later,) = choose(drafts, a_batch())
    assert later


def test_failed_model_is_left_out_for_its_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    model = TimedModel()
    drafts = drafting(model)
    batch = a_batch(2)

    def fail(*given: object) -> list[list[int]]:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(model, "draft", fail)
        assert choose(drafts, batch) == [[], []]
    assert model.closed == [sequence.id for sequence in batch]
    assert choose(drafts, batch) == [[], []]
    assert choose(drafts, a_batch()) != [[]]
