"""Chooses tokens in threads: those of a large step at once, and those of slow grammars while other steps run."""

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import accumulate

from genai_server.engine.host.cores import usable_cores
from genai_server.engine.runners.scores import Scores
from genai_server.engine.sampling.grammar import STEP_SECONDS
from genai_server.engine.sampling.next_token import NextToken, choose_next_token, num_choices
from genai_server.engine.sequence import Sequence

# The model's passes on CPUs also need the cores.
_CORES_PER_THREAD = 4
# The logits of a step below which handing rows to threads takes longer than choosing among them.
_MIN_LOGITS = 400_000


class ChoiceThreads:
    """Owned by the loop's thread.

    `done` is called in another thread with a sequence that `choose` was given, the time of its previous token, and what
    was chosen. llguidance releases Python's lock while it computes masks, and numpy while it reads logits.
    """

    def __init__(self, eos: list[int], done: Callable[[Sequence, float | None, Future[NextToken]], None]) -> None:
        num_threads = max(1, usable_cores() // _CORES_PER_THREAD)
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="choice")
        # No pass runs while these choose.
        self._all_cores = ThreadPoolExecutor(usable_cores(), thread_name_prefix="step-choice")
        self._eos = eos
        self._done = done

    def choose(self, sequence: Sequence, scores: Scores) -> None:
        """Choose the next token of a sequence from a copy of its scores, which the next pass overwrites.

        Until then the sequence takes part in no step.
        """
        sequence.is_choosing = True
        last = sequence.last
        chosen = self._threads.submit(choose_next_token, sequence, scores.copy(), self._eos)
        chosen.add_done_callback(lambda chosen: self._done(sequence, last, chosen))

    def choose_all(
        self, rows: Iterable[tuple[Sequence, Scores]]
    ) -> dict[Sequence, tuple[float | None, Future[NextToken]]]:
        """Begin to choose the next tokens of decoding sequences, where these are not simply the best.

        Returns nothing if choosing one after another takes less time. Returned with each
        sequence is the time of its newest token. The results must be awaited before the next pass.
        """
        costly = [(sequence, scores) for sequence, scores in rows if num_choices(sequence) != 1]
        if len(costly) < 2 or sum(scores.last.size for _, scores in costly) < _MIN_LOGITS:
            return {}
        return {
            sequence: (sequence.last, self._all_cores.submit(choose_next_token, sequence, scores, self._eos))
            for sequence, scores in costly
        }


def slow_grammars(sequences: Iterable[Sequence]) -> set[Sequence]:
    """The sequences whose grammars no longer fit into a step's time, after the cheapest ones."""
    costs = sorted(((s.guide.cost, s.id, s) for s in sequences if s.guide is not None), key=lambda each: each[:2])
    totals = accumulate(cost for cost, _, _ in costs)
    return {sequence for (_, _, sequence), total in zip(costs, totals, strict=True) if total > STEP_SECONDS}
