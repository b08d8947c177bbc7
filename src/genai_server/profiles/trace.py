"""Merges the files of a profile into one trace of Chrome's event format, which https://ui.perfetto.dev opens.

Each request is a process in the trace, and each of its tokens a thread, so that tokens appear one below the other.
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, Any

import msgspec
from msgspec import Struct

from genai_server.profiles.forward_pass import ForwardPass, Profile
from genai_server.profiles.manifest import PREFILL
from genai_server.profiles.trace_file import Event, events_of_runs

_MAX_THREADS = 1000


class _Event(Struct, omit_defaults=True):
    """An event of the trace. Times are in microseconds."""

    name: str
    # "X" for an event with a duration, "M" for one that names its track.
    ph: str
    pid: int
    tid: int = 0
    ts: int | None = None
    dur: int | None = None
    cat: str = ""
    args: dict[str, Any] | msgspec.Raw | None = None


@dataclass
class _Tracks:
    """Numbers processes and threads of the trace, and collects the events that name them."""

    fresh: list[_Event] = field(default_factory=list)
    _processes: dict[str, int] = field(default_factory=dict)
    _threads: dict[tuple[int, str], int] = field(default_factory=dict)

    def process(self, name: str) -> int:
        """The number of the process with this name."""
        if name not in self._processes:
            pid = self._processes[name] = len(self._processes) + 1
            self.fresh.append(_Event("process_name", "M", pid, args={"name": name}))
        return self._processes[name]

    def thread(self, pid: int, name: str, position: int) -> int:
        """The number of the thread with this name, which is shown at this position of its process."""
        if (pid, name) not in self._threads:
            tid = self._threads[pid, name] = len(self._threads) + 1
            self.fresh.append(_Event("thread_name", "M", pid, tid, args={"name": name}))
            self.fresh.append(_Event("thread_sort_index", "M", pid, tid, args={"sort_index": position}))
        return self._threads[pid, name]


def write_trace(profile: Profile, out: IO[bytes]) -> int:
    """Write the trace. Returns the number of its events.

    Raises OSError and ValueError if a file has changed since it was read.
    """
    about = {} if profile.session is None else {"otherData": msgspec.to_builtins(profile.session)}
    head = msgspec.json.encode({"displayTimeUnit": "ms"} | about)
    out.write(head[:-1] + b',"traceEvents":[')
    count = 0
    for event in _events(profile):
        out.write((b",\n" if count else b"\n") + msgspec.json.encode(event))
        count += 1
    out.write(b"\n]}\n")
    return count


def _events(profile: Profile) -> Iterator[_Event]:
    tracks = _Tracks()
    by_file: dict[str, list[tuple[int, ForwardPass]]] = defaultdict(list)
    for index, one in enumerate(profile.passes):
        by_file[one.file].append((index, one))
    for file, passes in by_file.items():
        runs = events_of_runs(profile.folder / file)
        for (index, one), (run, events) in zip(passes, runs, strict=True):
            yield from _of_pass(index, one, [run, *events], tracks)


def _of_pass(index: int, one: ForwardPass, events: list[Event], tracks: _Tracks) -> Iterator[_Event]:
    """Yield the trace's events for the forward pass with the index `index`, and events that name new tracks before
    them.

    `events` are the events of ONNX Runtime's file; the first one is the pass itself.
    """
    run = events[0]
    name, position = _track(index, one)
    pid = tracks.process("profile" if one.record is None else f"request {one.record.request_id}")
    others = {tid: number for number, tid in enumerate(sorted({event.tid for event in events} - {run.tid}), 2)}
    within: dict[int, list[int]] = defaultdict(list)
    for event in sorted(events, key=lambda event: (event.ts, event is not run, -event.dur)):
        track = name if event.tid == run.tid else f"{name}, thread {others[event.tid]}"
        tid = tracks.thread(pid, track, position * _MAX_THREADS + others.get(event.tid, 0))
        yield from tracks.fresh
        tracks.fresh.clear()
        begin = event.ts - run.ts + one.start
        if event is run:
            yield _Event(name, "X", pid, tid, begin, _fit(within[tid], begin, one.duration), event.cat, _about(one))
        else:
            yield _Event(event.name, "X", pid, tid, begin, _fit(within[tid], begin, event.dur), event.cat, event.args)


def _track(index: int, one: ForwardPass) -> tuple[str, int]:
    """The name of the track that shows a forward pass, and the track's position below its request."""
    if one.record is None:
        return f"pass {index}", index
    return ("prompt", 0) if one.phase == PREFILL else (f"token {one.record.token}", one.record.token + 1)


def _fit(ends: list[int], begin: int, duration: int) -> int:
    """The duration of an event that begins at `begin`, cut to fit within the events around it, which end at `ends`.

    All times are in microseconds. Rounded to whole microseconds, an event may seem to outlast the one around it, and
    such traces are rejected.
    """
    while ends and ends[-1] <= begin:
        ends.pop()
    end = min([begin + duration, *ends])
    ends.append(end)
    return end - begin


def _about(one: ForwardPass) -> dict[str, Any]:
    """What the trace shows about a pass: file, phase, tokens and time outside kernels, as arguments of its event."""
    known = {"file": one.file, "phase": one.phase, "tokens read": one.num_tokens, "not in kernels (µs)": one.other_time}
    return known if one.record is None else known | {"position": one.record.position}
