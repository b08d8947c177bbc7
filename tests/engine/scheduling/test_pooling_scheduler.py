"""Which texts are read next."""

import pytest

from genai_server.engine.runners.scripted import ScriptedRunner
from genai_server.engine.scheduling.scheduler import PoolingScheduler
from genai_server.engine.scheduling.scheduler_output import Step
from genai_server.engine.sequence import Sequence
from genai_server.messages.generation_request import GenerationRequest, PooledText


class Device:
    """A scheduler whose steps take one second per `speed` tokens."""

    def __init__(self, *requests: tuple[str, list[int]], low_priority: str = "") -> None:
        self.scheduler = PoolingScheduler(ScriptedRunner(), max_running=16, max_waiting=16, prefill_chunk=8)
        for number, (name, lengths) in enumerate(requests):
            texts = [PooledText(length) for length in lengths]
            request = GenerationRequest(
                name, [1] * sum(lengths), 0, sum(lengths), texts=texts, low_priority=name == low_priority
            )
            self.scheduler.add(Sequence(number, (0, number), request, lambda: 0.0))
        self.scheduler.admit()

    def steps(self, speed: float = 1e9) -> list[list[tuple[str, list[int]]]]:
        """The texts of each step: names of requests, with the lengths of their texts."""
        found = []
        while self.scheduler.running and (step := self.scheduler.next_step()) is not None:
            found.append([(r.sequence.request.request_id, [t.num_tokens for t in r.texts]) for r in step.chunks])
            self._read(step)
            self.scheduler.observe(step, step.num_tokens / speed)
        return found

    def _read(self, step: Step) -> None:
        for chunk in step.chunks:
            chunk.sequence.num_read += chunk.num_tokens
            chunk.sequence.num_texts += len(chunk.texts)
            if not chunk.sequence.num_unread:
                self.scheduler.remove(chunk.sequence)


def test_texts_of_all_requests_are_read_together() -> None:
    assert Device(("a", [30, 20]), ("b", [10])).steps() == [[("b", [10]), ("a", [30, 20])]]


def test_a_step_has_as_many_texts_as_its_budget_holds() -> None:
    steps = Device(("a", [200, 200, 200, 100])).steps(speed=2000)
    assert steps == [[("a", [200, 200])], [("a", [200, 100])]]


def test_a_short_request_does_not_wait_for_the_end_of_a_long_one() -> None:
    device = Device(("long", [400] * 5), ("short", [300]))
    assert device.steps(speed=1000)[0][0] == ("short", [300])


def test_a_text_above_the_budget_is_read_alone() -> None:
    assert Device(("a", [5000, 10])).steps(speed=100) == [[("a", [5000])], [("a", [10])]]


@pytest.mark.parametrize(("speed", "texts"), [(100.0, 5), (100_000.0, 80)])
def test_budget_is_derived_from_measured_times(speed: float, texts: int) -> None:
    steps = Device(("a", [100] * 200)).steps(speed)
    assert len(steps[1][0][1]) in (texts, texts + 1)


def test_step_is_limited_in_texts_and_returns_vectors_at_once() -> None:
    steps = Device(("a", [1] * 200), ("b", [1] * 200)).steps()
    assert [sum(len(lengths) for _, lengths in step) for step in steps] == [256, 144]


def test_texts_of_the_background_are_read_after_all_others() -> None:
    device = Device(("b", [10]), ("x", [300, 300]), low_priority="b")
    assert device.steps(speed=1e3) == [[("x", [300])], [("x", [300])], [("b", [10])]]
