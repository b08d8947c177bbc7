"""One request inside the engine: the next tokens to read, the end of the answer, and the times of its phases."""

import pytest

from genai_server.engine.sequence import Sequence, common_prefix_length
from genai_server.messages.generation_request import GenerationRequest, Phases
from genai_server.timing import Clock
from tests.hand_clock import HandClock


def _sequence(num_prompt: int = 5, max_tokens: int = 3, max_length: int = 100, clock: Clock = lambda: 0.0) -> Sequence:
    request = GenerationRequest("r1", list(range(10, 10 + num_prompt)), max_tokens, max_length)
    return Sequence(0, (0, 0), request, clock)


def _read(sequence: Sequence, most: int) -> list[int]:
    """A pass, as the runner pair does it; returns the tokens that it reads."""
    sequence.start()
    tokens = sequence.tokens[sequence.num_read : sequence.num_read + most]
    sequence.num_read += len(tokens)
    return tokens


# reading


def test_prefill_lasts_until_the_first_token_is_produced() -> None:
    sequence = _sequence(2)
    seen = []
    for token in (None, 7, 8):
        _read(sequence, 1)
        seen.append(sequence.is_decoding)
        if token is not None:
            sequence.append(token)
            seen.append(sequence.is_decoding)
    assert seen == [False, False, True, True, True]


@pytest.mark.parametrize(("num_read", "is_decoding"), [(0, False), (3, False), (4, False), (5, True)])
def test_recomputed_past_is_prefill_until_its_last_token(num_read: int, is_decoding: bool) -> None:
    sequence = _sequence(2)
    for token in (7, 8, 9, 6):
        sequence.append(token)
    sequence.num_read = num_read
    assert sequence.is_decoding == is_decoding
    assert sequence.num_unread == 6 - num_read


# the end


@pytest.mark.parametrize(
    ("max_tokens", "max_length", "produced", "grows_to"),
    [(3, 100, 3, 8), (3, 8, 3, 8), (3, 7, 2, 7), (1, 100, 1, 6), (100, 6, 1, 6)],
)
def test_an_answer_is_full_at_the_nearer_of_its_two_limits(
    max_tokens: int, max_length: int, produced: int, grows_to: int
) -> None:
    sequence = _sequence(5, max_tokens, max_length)
    assert sequence.max_length == grows_to
    for _ in range(produced):
        assert sequence.num_left > 0
        sequence.append(1)
    assert sequence.num_left == 0


# times


def test_the_time_is_split_into_queue_prefill_and_decode(clock: HandClock) -> None:
    sequence = _sequence(clock=clock)
    clock.wait(1)
    _read(sequence, 2)
    clock.wait(1)
    _read(sequence, 3)
    clock.wait(1)
    sequence.append(1)
    clock.wait(4)
    _read(sequence, 1)
    clock.wait(4)
    sequence.append(2)
    clock.wait(100)
    assert sequence.phases() == Phases(queue=1, prefill=2, decode=8)


def test_sequence_that_never_ran_has_queue_time_only(clock: HandClock) -> None:
    sequence = _sequence(clock=clock)
    clock.wait(3)
    assert sequence.phases() == Phases(queue=3, prefill=0, decode=0)


def test_one_token_takes_no_time_of_decoding(clock: HandClock) -> None:
    sequence = _sequence(clock=clock)
    _read(sequence, 5)
    clock.wait(2)
    sequence.append(1)
    clock.wait(2)
    assert sequence.phases() == Phases(queue=0, prefill=2, decode=0)


@pytest.mark.parametrize("num_common", [0, 1, 2, 63, 64, 65, 99, 100])
def test_the_common_beginning_ends_where_two_prompts_differ(num_common: int) -> None:
    one = list(range(100))
    other = [*one[:num_common], *(-token for token in one[num_common:] if token)]
    assert common_prefix_length(one, other) == common_prefix_length(other, one) == num_common
    assert common_prefix_length(one[:num_common], one) == num_common
