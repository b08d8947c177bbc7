"""Sequences and schedulers for tests, and what the next passes are."""

from typing import Any

from genai_server.engine.abilities import Abilities
from genai_server.engine.runners.base import Runner
from genai_server.engine.runners.scripted import ScriptedRunner
from genai_server.engine.scheduling.scheduler import Scheduler
from genai_server.engine.scheduling.scheduler_output import Step
from genai_server.engine.scheduling.step_time import StepTimeModel
from genai_server.engine.sequence import Sequence
from genai_server.messages.generation_request import GenerationRequest

CHUNK = 8
IDLE_CHUNK = 24


def a_sequence(
    name: str, num_prompt: int = 1, *, decoding: bool = False, batched: bool = False, **fields: Any
) -> Sequence:
    sequence = Sequence(0, (0, 0), GenerationRequest(name, [1] * num_prompt, 10, 2000, **fields), lambda: 0.0)
    sequence.batched = batched
    if decoding:
        produce(sequence)
    return sequence


def produce(sequence: Sequence) -> None:
    """Read the rest and append a token."""
    sequence.num_read = len(sequence.tokens)
    sequence.append(5)


def decoding(names: str, **how: Any) -> list[Sequence]:
    """Decoding sequences with one-letter names."""
    return [a_sequence(name, decoding=True, **how) for name in names]


def preemptions(scheduler: Scheduler) -> list[str]:
    """The names of the sequences that are preempted from now on."""
    found: list[str] = []
    scheduler.on_preempt = lambda sequence: found.append(sequence.request.request_id)
    return found


def names_of(sequences: list[Sequence]) -> list[str]:
    return [sequence.request.request_id for sequence in sequences]


def next_step(scheduler: Scheduler) -> Step:
    """The next step; fails without one."""
    step = scheduler.next_step()
    assert step is not None
    return step


def passes(scheduler: Scheduler, count: int) -> str:
    """The next passes by one-letter names, with batches in brackets and "-" for no pass. Nothing is actually read."""
    found = ""
    for _ in range(count):
        step = scheduler.next_step()
        names = "-" if step is None else "".join(names_of(step.sequences))
        found += names if len(names) == 1 else f"({names})"
    return found


def a_scheduler(*sequences: Sequence, runner: Runner | None = None, **limits: Any) -> Scheduler:
    """A scheduler with these sequences in its queue; a limit that is not given does not matter."""
    usual = {"max_running": 16, "max_waiting": 16, "prefill_chunk": CHUNK}
    scheduler = Scheduler(runner or ScriptedRunner(), **usual | limits)
    for sequence in sequences:
        scheduler.add(sequence)
    return scheduler


def admitted(*sequences: Sequence, **limits: Any) -> Scheduler:
    """A scheduler that has admitted these sequences."""
    scheduler = a_scheduler(*sequences, **{"idle_chunk": IDLE_CHUNK} | limits)
    scheduler.admit()
    return scheduler


def arrive(scheduler: Scheduler, *sequences: Sequence) -> None:
    for sequence in sequences:
        scheduler.add(sequence)
        scheduler.admit()


def chunks_of(scheduler: Scheduler, sequence: Sequence) -> list[int]:
    """The prefill passes of this sequence, as numbers of tokens."""
    found = []
    while not sequence.is_decoding and sequence.num_unread:
        step = next_step(scheduler)
        if step.sequences == [sequence]:
            found.append(step.num_tokens)
            sequence.num_read += step.num_tokens
    return found


def asking(prompt: list[int], *, reuses_past: bool = True, request_id: str = "r", **fields: Any) -> Sequence:
    request = GenerationRequest(request_id, prompt, 10, 2000, **fields)
    return Sequence(0, (0, 0), request, lambda: 0.0, reuses_past=reuses_past)


class FreePasses(StepTimeModel):
    """As if passes took no time."""

    def passed(self, num_decoded: int, num_tokens: int, seconds: float) -> None:
        pass

    def curve(self, num_tokens: int) -> list[float]:
        return [0.0] * (num_tokens + 1)


def able_runner() -> ScriptedRunner:
    """A runner whose passes may mix and have drafts."""
    runner = ScriptedRunner()
    runner.abilities = Abilities("able", 16, mixes=True, drafts=True)
    return runner


def num_free(scheduler: Scheduler, tenant: str = "", *, low_priority: bool = False) -> int:
    """How many more sequences of a tenant could be added."""
    return scheduler.capacity.num_free(scheduler.present(low_priority=low_priority), tenant)


def free_tokens(scheduler: Scheduler, tenant: str = "") -> int | None:
    """How many tokens the prompt of one more sequence of a tenant may have."""
    return scheduler.capacity.free_tokens(scheduler.present(), scheduler.waiting_tokens(), tenant)
