"""Which sequence takes the next turn: pure policy, without model, thread or clock.

A round gives every decoding sequence one token, then one chunk of prompt to the sequence that has waited longest for
its first token. So a long prompt costs a running stream one chunk's time for each token, however many prompts wait.
"""

from collections import deque

from genai_server.engine.sequence import Sequence
from genai_server.errors import QueueFull


class Scheduler:
    """Waiting and running sequences of one device, in order of arrival."""

    def __init__(self, *, max_running: int, max_waiting: int) -> None:
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._max_running = max_running
        self._max_waiting = max_waiting
        self._round: deque[Sequence] = deque()

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self.running and not self.waiting

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises QueueFull when as many wait as may wait."""
        present = len(self.running) + len(self.waiting)
        if present >= self._max_running + self._max_waiting:
            raise QueueFull(
                f"{present} requests are on this device already: GENAI_MAX_BATCH_SIZE lets {self._max_running} run "
                f"and GENAI_MAX_QUEUE lets {self._max_waiting} wait"
            )
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence, wherever it is."""
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)

    def admit(self) -> list[Sequence]:
        """Move waiting sequences to the running ones while there is room; returns those moved."""
        admitted = []
        while self.waiting and len(self.running) < self._max_running:
            admitted.append(self.waiting.popleft())
            self.running.append(admitted[-1])
        return admitted

    def next_turn(self) -> Sequence | None:
        """The sequence whose turn it is, or None when nothing runs."""
        while self.running:
            if not self._round:
                self._start_round()
            sequence = self._round.popleft()
            if sequence in self.running:
                return sequence
        self._round.clear()
        return None

    def _start_round(self) -> None:
        self._round.extend(sequence for sequence in self.running if not sequence.is_prefilling)
        self._round.extend([sequence for sequence in self.running if sequence.is_prefilling][:1])
