"""Processes that check schemas: the library that follows them can end its process."""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait

from .checking import Checked, Checker
from .source import Source

_MAX_SECONDS = 120.0


@dataclass
class Findings:
    """The results of all schemas; those in `died` ended or blocked the process that checked them."""

    refused: Counter[str] = field(default_factory=Counter)
    taken: int = 0
    # Accepted schemas that are followed only in part; and by keyword, the number of schemas without it.
    in_part: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    answers: int = 0
    unended: int = 0
    unjudged: int = 0
    slowest: float = 0.0
    broken: list[tuple[int, str]] = field(default_factory=list)
    died: list[int] = field(default_factory=list)

    def add(self, checked: Checked) -> None:
        """The result of one schema."""
        if checked.refusal is not None:
            self.refused[checked.refusal] += 1
        else:
            self.taken += 1
        self.in_part += bool(checked.left_out)
        self.left_out.update(checked.left_out)
        self.answers += checked.answers
        self.unended += checked.unended
        self.unjudged += checked.unjudged
        self.slowest = max(self.slowest, checked.seconds)
        self.broken += [(checked.number, what) for what in checked.broken]


class Worker:
    """A process and its remaining numbers; it is working on the first of them."""

    def __init__(self, numbers: Sequence[int], source: Source, walks: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.results, theirs = context.Pipe(duplex=False)
        self.left = list(numbers)
        self._process = context.Process(target=_check, args=(theirs, self.left, source, walks), daemon=True)
        self._process.start()
        theirs.close()
        self._heard = time.monotonic()

    def receive(self, found: Findings) -> bool:
        """Read the available results; returns whether there may be more."""
        try:
            checked = self.results.recv()
        except EOFError:
            return False
        self.left.remove(checked.number)
        found.add(checked)
        self._heard = time.monotonic()
        return True

    @property
    def hangs(self) -> bool:
        return time.monotonic() - self._heard > _MAX_SECONDS

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self.results.close()


def check_all(numbers: range, source: Source, walks: int, processes: int) -> Findings:
    """Check the schemas with these numbers. A process that dies or hangs is replaced, and its schema is reported."""
    found = Findings()
    shares = [share for start in range(processes) if (share := numbers[start::processes])]
    workers = {worker.results: worker for worker in (Worker(share, source, walks) for share in shares)}
    while workers:
        ready = [results for results in wait(list(workers), timeout=1.0) if isinstance(results, Connection)]
        over = [results for results in ready if not workers[results].receive(found)]
        over += [results for results, worker in workers.items() if results not in ready and worker.hangs]
        for results in over:
            worker = workers.pop(results)
            worker.end()
            if worker.left:
                found.died.append(worker.left[0])
                if worker.left[1:]:
                    again = Worker(worker.left[1:], source, walks)
                    workers[again.results] = again
    return found


def _check(results: Connection, numbers: Sequence[int], source: Source, walks: int) -> None:
    checker = Checker(source, walks)
    for number in numbers:
        results.send(checker.check(number))
