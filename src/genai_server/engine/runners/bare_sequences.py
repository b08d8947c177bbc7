"""Sequences without a client, for warm-up and measurements."""

from collections.abc import Sequence as Several
from itertools import count
from typing import Any

from genai_server.engine.loaded_adapter import LoadedAdapter
from genai_server.engine.runners.base import Runner, run_pass
from genai_server.engine.scheduling.scheduler_output import Read
from genai_server.engine.scores import Scores
from genai_server.engine.sequence import Sequence
from genai_server.messages.generation_request import GenerationRequest, PooledText

# Negative ids: those of clients' sequences ascend from 0.
_IDS = count(-1, -1)
_SHORT = 2


def open_bare(
    runner: Runner,
    prompt: list[int],
    max_length: int,
    *,
    id: int | None = None,
    reuses_past: bool = False,
    adapter: LoadedAdapter | None = None,
    **fields: Any,
) -> Sequence:
    """Begin a sequence that can grow to `max_length` tokens; `fields` are the request's."""
    request = GenerationRequest("", prompt, max(0, max_length - len(prompt)), max_length, **fields)
    number = next(_IDS) if id is None else id
    sequence = Sequence(number, (0, 0), request, lambda: 0.0, adapter=adapter, reuses_past=reuses_past)
    sequence.num_read = runner.open(sequence)
    return sequence


def read_all(runner: Runner, sequences: Several[Sequence]) -> list[Scores]:
    """Read all unread tokens of some sequences in one pass. Raises RunnerFailed."""
    return run_pass(runner, [Read.next(one, one.num_unread, texts=one.request.texts) for one in sequences])


def try_pass(runner: Runner) -> None:
    """Read a short text in a sequence of its own. Raises what the runner raises."""
    texts = [PooledText(_SHORT)] if runner.abilities.pools else []
    sequence = open_bare(runner, [1 % runner.model.vocab_size] * _SHORT, 2 * _SHORT, texts=texts)
    try:
        read_all(runner, [sequence])
    finally:
        runner.close(sequence.id)
