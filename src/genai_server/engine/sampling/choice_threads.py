"""Chooses tokens in separate threads, for sequences whose grammars would take too much of a step's time."""

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import accumulate

from genai_server.engine.host.cores import usable_cores
from genai_server.engine.sampling.continuation import NextToken, choose_next_token
from genai_server.engine.sampling.grammar import STEP_SECONDS
from genai_server.engine.scores import Scores
from genai_server.engine.sequence import Sequence

# The model's passes on CPUs also need the cores.
_CORES_PER_THREAD = 4


class ChoiceThreads:
    """Owned by the loop's thread. A sequence whose token is being chosen takes part in no step.

    llguidance releases Python's lock while it computes masks, so the loop runs passes at the same time.
    """

    def __init__(self, eos: list[int]) -> None:
        num_threads = max(1, usable_cores() // _CORES_PER_THREAD)
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="choice")
        self._eos = eos

    def choose(self, sequence: Sequence, scores: Scores, done: Callable[[Future[NextToken]], None]) -> None:
        """Choose the next token of a sequence from a copy of its scores, which the next pass overwrites.

        `done` is called with the result, usually in another thread.
        """
        sequence.is_choosing = True
        self._threads.submit(choose_next_token, sequence, scores.copy(), self._eos).add_done_callback(done)


def slow_grammars(sequences: Iterable[Sequence]) -> set[Sequence]:
    """The sequences whose grammars no longer fit into a step's time, after the cheapest ones."""
    costs = sorted(((s.guide.cost, s.id, s) for s in sequences if s.guide is not None), key=lambda each: each[:2])
    totals = accumulate(cost for cost, _, _ in costs)
    return {sequence for (_, _, sequence), total in zip(costs, totals, strict=True) if total > STEP_SECONDS}
