"""Estimates when a full queue takes requests again, from the measured times of steps and lengths of answers."""

import math
from collections import deque
from collections.abc import Collection, Iterable
from heapq import heapify, heappop, heappush

from genai_server.engine.scheduling.scheduler_output import UNSHARED, KvMemory
from genai_server.engine.scheduling.step_time import StepTimeModel
from genai_server.engine.sequence import Sequence

# Seconds. Longer estimates would mean little.
_FURTHEST = 600


def queue_wait(
    running: Collection[Sequence],
    waiting: Iterable[Sequence],
    step_times: StepTimeModel,
    num_tokens: int = 0,
    memory: KvMemory = UNSHARED,
) -> int:
    """Seconds, at least one, until a running answer has ended and `num_tokens` of waiting prompts have left the queue.

    The estimate assumes that prompts are read one after another, and that answers are produced side by side. Each
    answer is assumed to be as long as recent ones. The first waiting sequence begins when an answer ends and the memory
    holds it.
    """
    read = 0.0
    ends = []
    free = memory.num_pages - sum(memory.pages(sequence.max_length) for sequence in running)
    for sequence in running:
        if not sequence.is_decoding:
            read += step_times.seconds_to_read(sequence.num_unread)
        begins = 0.0 if sequence.is_decoding else read
        ends.append((begins + _seconds_to_answer(sequence, step_times), memory.pages(sequence.max_length)))
    heapify(ends)
    places, now, waits = 0, 0.0, deque(waiting)
    while ends:
        now, freed = heappop(ends)
        if not waits:
            break
        places, free = places + 1, free + freed
        while waits and places and memory.pages(waits[0].max_length) <= free:
            begun = waits.popleft()
            num_prompt, pages = len(begun.request.prompt), memory.pages(begun.max_length)
            num_tokens -= num_prompt
            places, free = places - 1, free - pages
            seconds = step_times.seconds_to_read(num_prompt) + _seconds_to_answer(begun, step_times)
            heappush(ends, (now + seconds, pages))
        if num_tokens <= 0:
            break
    return max(1, min(_FURTHEST, math.ceil(now)))


def _seconds_to_answer(sequence: Sequence, step_times: StepTimeModel) -> float:
    return step_times.seconds_to_decode(min(sequence.num_left, step_times.tokens_left(sequence.num_produced)))
