"""Estimates when a full queue has room again, from the measured times of steps and lengths of answers."""

import math
from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from genai_server.engine.scheduling.step_time import StepTimeModel
from genai_server.engine.sequence import Sequence

# Seconds. Longer estimates would mean little.
_FURTHEST = 600


def queue_wait(
    running: Iterable[Sequence], waiting: Iterable[Sequence], step_times: StepTimeModel, num_tokens: int = 0
) -> int:
    """Seconds, at least one, until a running answer has ended and `num_tokens` of waiting prompts have left the queue.

    The estimate assumes that prompts are read one after another, and that answers are produced side by side. Each
    answer is assumed to be as long as recent ones.
    """
    read = 0.0
    ends = []
    for sequence in running:
        if not sequence.is_decoding:
            read += step_times.seconds_to_read(sequence.num_unread)
        begins = 0.0 if sequence.is_decoding else read
        ends.append(begins + _seconds_to_answer(sequence, step_times))
    heapify(ends)
    now, following = 0.0, iter(waiting)
    while ends:
        now = heappop(ends)
        sequence_begun = next(following, None)
        if sequence_begun is None:
            break
        num_prompt = len(sequence_begun.request.prompt)
        num_tokens -= num_prompt
        if num_tokens <= 0:
            break
        heappush(ends, now + step_times.seconds_to_read(num_prompt) + _seconds_to_answer(sequence_begun, step_times))
    return max(1, min(_FURTHEST, math.ceil(now)))


def _seconds_to_answer(sequence: Sequence, step_times: StepTimeModel) -> float:
    return step_times.seconds_to_decode(min(sequence.num_left, step_times.tokens_left(sequence.num_produced)))
