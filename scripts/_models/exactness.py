"""What the bits of a model's logits depend on: each question reads the same tokens in two ways and compares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from genai_server.engine.runners.base import Runner
from genai_server.engine.scheduling.scheduler import Scheduler
from genai_server.engine.scores import Logits
from genai_server.engine.sequence import Sequence as Scheduled
from genai_server.messages.generation_request import GenerationRequest

from .driven import Driven
from .equality import Tally, prompt

SLOTS, MAX_LENGTH = 16, 320
# Tokens that are fed one by one after a prompt; the logits of each step are compared.
STEPS = 12
BATCHES = (1, 2, 3, 4, 5, 8, 15)
CHUNKS = (2, 3, 16, 17, 33, 64, 65, 128, 129)
# Includes odd ones, because some kernels process rows in pairs.
PASTS = (64, 63)


@dataclass(frozen=True)
class Stream:
    """A prompt, and the tokens that are fed after it, whatever the model would choose."""

    tokens: list[int]
    following: list[int]


@dataclass(frozen=True)
class Way:
    """How a stream is read: its prompt in chunks of these sizes or whole, and with which past."""

    chunks: tuple[int, ...] = ()
    reuse: bool = False
    exact: bool = False


WHOLE, EXACT = Way(), Way(exact=True)


@dataclass(frozen=True)
class Finding:
    """The logits of one way compared with those of another."""

    what: str
    against: str
    tally: Tally


def findings(batched: Driven, generator: Driven, most: int | None = None) -> Iterator[Finding]:
    """All questions, each with a limited number of sizes, for a runner that has SLOTS slots of MAX_LENGTH tokens."""
    yield from _batches(batched, most)
    yield from _chunks(batched, most)
    yield from _pasts(batched, most)
    yield from _generator(batched, generator)


def stream(length: int, seed: int = 0) -> Stream:
    """Random tokens."""
    return Stream(prompt(length, seed), prompt(STEPS, seed + 1000))


def read(runner: Driven, streams: Sequence[Stream], way: Way = WHOLE, *, first: int = 0) -> list[list[Logits]]:
    """Read streams concurrently, as sequences from `first` on; returns each one's logits after its prompt and
    after each token that follows.
    """
    numbers = range(first, first + len(streams))
    rows = [[_begin(runner, number, one, way)] for number, one in zip(numbers, streams, strict=True)]
    for step in range(STEPS):
        logits = runner.decode(numbers, [one.following[step] for one in streams])
        for row, one in zip(rows, logits, strict=True):
            row.append(one.copy())
    for number in numbers:
        runner.close(number)
    return rows


def _begin(runner: Driven, number: int, one: Stream, way: Way) -> Logits:
    start = runner.open(number, one.tokens, MAX_LENGTH, reuse=way.reuse, exact=way.exact)
    for size in way.chunks or (len(one.tokens) - start,):
        logits = runner.prefill(number, one.tokens[start : start + size])
        start += size
    assert start == len(one.tokens)
    return logits.copy()


def _compared(found: Sequence[Sequence[Logits]], expected: Sequence[Sequence[Logits]]) -> Tally:
    tally = Tally()
    for one, other in zip(found, expected, strict=True):
        for logits, wanted in zip(one, other, strict=True):
            tally.add(logits, wanted)
    return tally


def _batches(runner: Driven, most: int | None) -> Iterator[Finding]:
    """Concurrent prompts of different lengths, at most as many as there are slots."""
    streams = [stream(8 + 2 * number, number) for number in range(SLOTS)]
    expected = read(runner, streams)
    for way, sizes in ((WHOLE, BATCHES), (EXACT, (1, 3, 15))):
        for rows in sizes[:most]:
            num_compared = SLOTS // rows * rows
            groups = [streams[start : start + rows] for start in range(0, num_compared, rows)]
            found = [row for group in groups for row in read(runner, group, way)]
            title = ("one row alone" if rows == 1 else f"a row of {rows}") + (", exact" if way.exact else "")
            yield Finding(title, f"a row of {SLOTS}", _compared(found, expected[:num_compared]))


def _chunks(runner: Driven, most: int | None) -> Iterator[Finding]:
    """Prompts that are an even number of whole chunks, so that nothing but the size counts, and as the server does."""
    for size in CHUNKS[:most]:
        number = max(2, 2 * round(96 / size))
        streams = [stream(number * size, seed) for seed in (100, 101)]
        expected = [row for one in streams for row in read(runner, [one])]
        found = [row for one in streams for row in read(runner, [one], Way((size,) * number))]
        yield Finding(f"prompt in chunks of {size}", "prompt read whole", _compared(found, expected))
    streams = [stream(length, 102) for length in (131, 161, 162)]
    expected = [row for one in streams for row in read(runner, [one])]
    limits = zip(streams, (128, 33, 23), strict=True)
    ways = [Way(_divided(runner.runner, len(one.tokens), most)) for one, most in limits]
    found = [row for one, way in zip(streams, ways, strict=True) for row in read(runner, [one], way)]
    yield Finding("prompt in the server's chunks", "prompt read whole", _compared(found, expected))


def _divided(runner: Runner, length: int, most: int) -> tuple[int, ...]:
    """The chunks in which the server reads a prompt, with a maximum number of tokens."""
    scheduler = Scheduler(runner, max_running=1, max_waiting=1, prefill_chunk=most)
    sequence = Scheduled(0, (0, 0), GenerationRequest("", [0] * length, 1, MAX_LENGTH), lambda: 0.0)
    scheduler.add(sequence)
    scheduler.admit()
    chunks = []
    while sequence.num_unread:
        step = scheduler.next_step()
        assert step is not None
        chunks.append(step.num_tokens)
        sequence.num_read += step.num_tokens
    return tuple(chunks)


def _pasts(runner: Driven, most: int | None) -> Iterator[Finding]:
    """A past that a sequence left behind, one that it still uses, and one that it has made token by token."""
    for kind in ("prefilled", "prefilled, exact", "of a running sequence", "decoded too", "decoded too, exact"):
        tally = Tally()
        for length in PASTS[:most]:
            common = stream(length, 200 + length)
            follow = Stream([*common.tokens, *common.following, *prompt(20, 300)], prompt(STEPS, 301))
            exact = "exact" in kind
            (expected,) = read(runner, [follow], Way(exact=exact))
            runner.slots.forget()
            if "decoded" in kind:
                read(runner, [common])
            else:
                _begin(runner, 1, common, WHOLE)
                if kind.startswith("prefilled"):
                    runner.close(1)
            (found,) = read(runner, [follow], Way(reuse=True, exact=exact), first=2)
            runner.close(1)
            tally += _compared([found], [expected])
        yield Finding(f"past used again, {kind}", "prompt read whole", tally)


def _generator(runner: Driven, generator: Driven) -> Iterator[Finding]:
    """The library's own Generator, one prompt after the other."""
    streams = [stream(length, 400) for length in (2, 33, 64, 200)]
    expected = [row for one in streams for row in read(generator, [one])]
    for title, way in (("one row alone", WHOLE), ("one row alone, exact", EXACT)):
        found = [row for one in streams for row in read(runner, [one], way)]
        yield Finding(title, "og.Generator", _compared(found, expected))
