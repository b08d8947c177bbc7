"""Estimates when a full queue takes requests again, from the measured times of steps and lengths of answers."""

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable
from heapq import heapify, heappop, heappush

from genai_server.engine.scheduling.step_time import StepTimeModel
from genai_server.engine.sequence import Sequence

# Seconds. Longer estimates would mean little.
_FURTHEST = 600


def queue_wait(
    running: Collection[Sequence],
    waiting: Iterable[Sequence],
    step_times: StepTimeModel,
    num_tokens: int = 0,
    *,
    pages: Callable[[Sequence], int] = lambda sequence: 0,
    num_pages: int = 0,
) -> int:
    """Seconds, at least one, until a running answer has ended and `num_tokens` of waiting prompts have left the queue.

    The estimate assumes that prompts are read one after another, and that answers are produced side by side. Each
    answer is assumed to be as long as recent ones. The first waiting sequence begins when an answer ends and the
    `num_pages` of memory hold it, of which each sequence is expected to need `pages`.
    """
    read = 0.0
    ends = []
    free = num_pages - sum(map(pages, running))
    for sequence in running:
        if not sequence.is_decoding:
            read += step_times.seconds_to_read(sequence.num_unread)
        begins = 0.0 if sequence.is_decoding else read
        ends.append((begins + _seconds_to_answer(sequence, step_times), pages(sequence)))
    heapify(ends)
    places, now, waits = 0, 0.0, deque(waiting)
    while ends:
        now, freed = heappop(ends)
        if not waits:
            break
        places, free = places + 1, free + freed
        while waits and places and pages(waits[0]) <= free:
            begun = waits.popleft()
            num_prompt, needed = len(begun.request.prompt), pages(begun)
            num_tokens -= num_prompt
            places, free = places - 1, free - needed
            seconds = step_times.seconds_to_read(num_prompt) + _seconds_to_answer(begun, step_times)
            heappush(ends, (now + seconds, needed))
        if num_tokens <= 0:
            break
    return max(1, min(_FURTHEST, math.ceil(now)))


def _seconds_to_answer(sequence: Sequence, step_times: StepTimeModel) -> float:
    return step_times.seconds_to_decode(min(sequence.num_left, step_times.tokens_left(sequence.num_produced)))
