"""Merges the files of a profile into one trace in Chrome's event format, which https://ui.perfetto.dev opens
(`write_trace`).

Each request is a process in the trace, and each of its tokens a thread, so that tokens appear one below the other. The
format is described at https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, Any

import msgspec
from msgspec import Struct

from genai_server.profiles.manifest import PREFILL
from genai_server.profiles.profile_files import Event, ForwardPass, Profile, events_of_runs

_MAX_THREADS = 1000


class _Event(Struct, omit_defaults=True):
    """An event of the trace in Chrome's format, as it is written. Times are in microseconds."""

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
    """Assigns the numbers by which a trace in Chrome's format refers to processes and threads, by their names. `fresh`
    has the events that tell a viewer the names of new numbers; the writer of the trace empties it.
    """

    fresh: list[_Event] = field(default_factory=list)
    _processes: dict[str, int] = field(default_factory=dict)
    _threads: dict[tuple[int, str], int] = field(default_factory=dict)

    def process(self, name: str) -> int:
        """Return the number of the process of the trace with this name. If there is none yet, a new number is
        assigned.
        """
        if name not in self._processes:
            pid = self._processes[name] = len(self._processes) + 1
            self.fresh.append(_Event("process_name", "M", pid, args={"name": name}))
        return self._processes[name]

    def thread(self, pid: int, name: str, position: int) -> int:
        """Return the number of the thread with this name in the trace's process `pid`. If there is none yet, a new
        number is assigned, and viewers show the thread at `position` among the threads of its process.
        """
        if (pid, name) not in self._threads:
            tid = self._threads[pid, name] = len(self._threads) + 1
            self.fresh.append(_Event("thread_name", "M", pid, tid, args={"name": name}))
            self.fresh.append(_Event("thread_sort_index", "M", pid, tid, args={"sort_index": position}))
        return self._threads[pid, name]


def write_trace(profile: Profile, out: IO[bytes]) -> int:
    """Write the trace of a profile, in Chrome's event format (JSON), to the file `out`. Returns the number of events.

    Raises OSError or ValueError if a file of the profile has been removed or changed since the profile was read.
    """
    metadata = {} if profile.session is None else {"otherData": msgspec.to_builtins(profile.session)}
    head = msgspec.json.encode({"displayTimeUnit": "ms"} | metadata)
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
    for index, forward_pass in enumerate(profile.passes):
        by_file[forward_pass.file].append((index, forward_pass))
    for file, passes in by_file.items():
        runs = events_of_runs(profile.folder / file)
        for (index, forward_pass), (run, events) in zip(passes, runs, strict=True):
            yield from _of_pass(index, forward_pass, [run, *events], tracks)


def _of_pass(index: int, forward_pass: ForwardPass, events: list[Event], tracks: _Tracks) -> Iterator[_Event]:
    """Yield the trace's events for one forward pass, which has the index `index` in the profile. Events that name new
    processes and threads come first.

    `events` are the events of this pass in the file that ONNX Runtime has written; the first one is the pass itself.
    `tracks` has the numbers of processes and threads.
    """
    run = events[0]
    name, position = _track(index, forward_pass)
    pid = tracks.process("profile" if forward_pass.record is None else f"request {forward_pass.record.request_id}")
    thread_numbers = {tid: number for number, tid in enumerate(sorted({event.tid for event in events} - {run.tid}), 2)}
    within: dict[int, list[int]] = defaultdict(list)
    for event in sorted(events, key=lambda event: (event.ts, event is not run, -event.dur)):
        track = name if event.tid == run.tid else f"{name}, thread {thread_numbers[event.tid]}"
        tid = tracks.thread(pid, track, position * _MAX_THREADS + thread_numbers.get(event.tid, 0))
        yield from tracks.fresh
        tracks.fresh.clear()
        start = event.ts - run.ts + forward_pass.start
        if event is run:
            yield _Event(
                name,
                "X",
                pid,
                tid,
                start,
                _fit(within[tid], start, forward_pass.duration),
                event.cat,
                _about(forward_pass),
            )
        else:
            yield _Event(event.name, "X", pid, tid, start, _fit(within[tid], start, event.dur), event.cat, event.args)


def _track(index: int, forward_pass: ForwardPass) -> tuple[str, int]:
    """Return the name of the thread that shows a forward pass in the trace, and its position among the threads of its
    request. `index` is the index of the pass in the profile.
    """
    if forward_pass.record is None:
        return f"pass {index}", index
    return (
        ("prompt", 0)
        if forward_pass.phase == PREFILL
        else (f"token {forward_pass.record.token}", forward_pass.record.token + 1)
    )


def _fit(ends: list[int], start: int, duration: int) -> int:
    """Return the duration of an event that begins at `start`, shortened so that it does not outlast the events around
    it.

    `ends` has the ends of the events around it; ends up to `start` are removed, and the new event's end is appended.
    All times are in microseconds. After rounding to whole microseconds, an event may seem to outlast the one around it,
    and viewers reject such traces.
    """
    while ends and ends[-1] <= start:
        ends.pop()
    end = min([start + duration, *ends])
    ends.append(end)
    return end - start


def _about(forward_pass: ForwardPass) -> dict[str, Any]:
    """Return the details of a forward pass that a viewer shows for its event in the trace, by name: file, phase, tokens
    and time outside kernels.
    """
    args = {
        "file": forward_pass.file,
        "phase": forward_pass.phase,
        "tokens read": forward_pass.num_tokens,
        "not in kernels (µs)": forward_pass.other_time,
    }
    return args if forward_pass.record is None else args | {"position": forward_pass.record.position}
