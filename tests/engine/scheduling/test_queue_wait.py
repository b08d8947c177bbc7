"""When a full queue has capacity again."""

import pytest

from genai_server.engine.scheduling.admission_queue import queue_wait
from genai_server.engine.scheduling.step_time import StepTimeModel
from genai_server.engine.sequence import Sequence
from genai_server.messages.generation_request import GenerationRequest


def _step_times(*, per_round: float = 0.5, per_token: float = 0.1, answer: int | None = 20) -> StepTimeModel:
    step_times = StepTimeModel()
    step_times.passed(1, 1, per_round)
    step_times.begin_round()
    step_times.passed(0, 1, per_token)
    if answer is not None:
        step_times.answered(answer)
    return step_times


def _sequence(num_prompt: int = 10, num_produced: int = 0, max_tokens: int = 1000) -> Sequence:
    sequence = Sequence(0, (0, 0), GenerationRequest("r", [1] * num_prompt, max_tokens, 10_000), lambda: 0.0)
    if num_produced:
        sequence.num_read = num_prompt + num_produced - 1
        for _ in range(num_produced):
            sequence.append(5)
    return sequence


def test_place_is_free_when_the_shortest_answer_ends() -> None:
    # answers have 20 tokens, of which this one lacks 4: 2 s
    assert queue_wait([_sequence(num_produced=2), _sequence(num_produced=16)], [], _step_times()) == 2


def test_answer_counts_with_its_limit_before_any_has_ended() -> None:
    assert queue_wait([_sequence(num_produced=2, max_tokens=102)], [], _step_times(answer=None)) == 50


def test_prompt_waits_for_earlier_ones_and_delays_its_answer() -> None:
    prompts = [_sequence(100), _sequence(50, max_tokens=1)]
    # 10 s and 20 tokens for the first; 10 + 5 s and one token for the second
    assert queue_wait(prompts, [], _step_times()) == 16


def test_queued_tokens_are_free_when_their_prompts_begin() -> None:
    running = [_sequence(num_produced=18), _sequence(num_produced=10)]  # end after 1 s and 5 s
    waiting = [_sequence(100), _sequence(100), _sequence(100)]
    found = [queue_wait(running, waiting, _step_times(), num_tokens) for num_tokens in (0, 1, 100, 101, 201)]
    # the first begins at 1 s and ends after 10 s for its prompt and 10 s for its answer
    assert found == [1, 1, 1, 5, 21]


def test_the_time_is_rounded_up_and_within_bounds() -> None:
    assert queue_wait([_sequence(num_produced=15)], [], _step_times()) == 3
    assert queue_wait([_sequence(num_produced=15)], [], _step_times(per_round=1e6)) == 600
    assert queue_wait([_sequence(num_produced=15)], [], StepTimeModel()) == 1
    assert queue_wait([], [], _step_times()) == 1


@pytest.mark.parametrize("num_tokens", [0, 10**9])
def test_more_tokens_than_wait_are_free_when_all_have_begun(num_tokens: int) -> None:
    waiting = [_sequence(10)]
    assert queue_wait([_sequence(num_produced=18)], waiting, _step_times(), num_tokens) == (12 if num_tokens else 1)


def test_a_waiting_sequence_begins_when_there_is_memory_for_it() -> None:
    running = [_sequence(num_produced=18, max_tokens=90), _sequence(num_produced=10, max_tokens=90)]  # end at 1 s, 5 s
    waiting = [_sequence(100, max_tokens=50), _sequence(100)]
    found = [
        queue_wait(running, waiting, _step_times(), 1, pages=lambda each: each.max_length // 50, num_pages=number)
        for number in (4, 5, 6)
    ]
    assert found == [5, 1, 1]
