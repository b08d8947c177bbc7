"""Reads the profile files that ONNX Runtime has written in a folder, with or without a manifest (see manifest.py), as
forward passes of a model and the kernels that ran in each (`read_profile`).

The files are ONNX Runtime's own, with events of the Chrome trace format, from one run of the model or from a session.
The event `model_run` marks a run. Events of category Node whose names end in `_kernel_time` are its kernels.
https://onnxruntime.ai/docs/performance/tune-performance/profiling-tools.html

All times are in microseconds.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from genai_server.errors import ProfileNotFound, quoted
from genai_server.messages.admin import Profiled
from genai_server.profiles.manifest import DECODE, PREFILL, Manifest, PassRecord, Session, find_manifests

_LAYER = re.compile(r"\blayers?[./](\d+)\b")

UNKNOWN = "unknown"
_KERNEL = "_kernel_time"
_RUN = "model_run"


@dataclass(frozen=True)
class ThreadUse:
    """What the threads of ONNX Runtime's thread pool did during one kernel, as far as ONNX Runtime reports it: how long
    the calling thread worked and waited, in microseconds, and how much other threads did.
    """

    # Time in which the calling thread ran its share.
    run: int
    # Time in which the calling thread waited for the others.
    wait: int
    # Pieces of the work that the other threads took.
    num_shared: int


@dataclass(frozen=True)
class Kernel:
    """One execution of a node of the ONNX graph, as read from a profile: the node, its operator and execution provider,
    and when and for how long it ran. Times are in microseconds.
    """

    node: str
    operator: str
    provider: str
    # Time from the start of the forward pass.
    start: int
    duration: int
    # The duration without that of kernels nested in this one, as in a node with a subgraph.
    self_time: int
    # Nesting depth: the number of kernels in which this one is nested.
    depth: int = 0
    # The system's id of the calling thread.
    thread: int = 0
    threads: ThreadUse | None = None

    @property
    def layer(self) -> int | None:
        """The number of the decoder layer, taken from the node's name, such as 3 for /model/layers.3/attn; None for
        nodes outside the layers.
        """
        match = _LAYER.search(self.node)
        return int(match[1]) if match else None


@dataclass(frozen=True)
class ForwardPass:
    """One run of the model, for a chunk of a prompt or for a decode step, with the kernels that ran in it. Times are in
    microseconds.
    """

    file: str
    # Time from the start of the profile's first pass.
    start: int
    duration: int
    kernels: tuple[Kernel, ...]
    phase: str
    # Number of tokens that the pass has read; None if unknown.
    num_tokens: int | None = None
    # The entry for this pass in the manifest; None without a manifest.
    record: PassRecord | None = None

    @property
    def kernel_time(self) -> int:
        """The time in microseconds during which at least one kernel ran."""
        total, end = 0, 0
        for kernel in sorted(self.kernels, key=lambda kernel: kernel.start):
            last = kernel.start + kernel.duration
            total += max(0, last - max(end, kernel.start))
            end = max(end, last)
        return total

    @property
    def other_time(self) -> int:
        """The time in microseconds during which no kernel ran, because the pass bound inputs, allocated memory, or was
        between two nodes.
        """
        return max(0, self.duration - self.kernel_time)


@dataclass(frozen=True)
class Profile:
    """The forward passes of one profile session, in order, with the files that could not be read. `read_profile`
    returns it.
    """

    name: str
    # Contains the files of the passes.
    folder: Path
    passes: list[ForwardPass]
    session: Session | None = None
    # Files that cannot be read, with the reasons.
    unread: dict[str, str] = field(default_factory=dict)
    # The result of the session's plan; None if it had none or has not ended.
    profiled: Profiled | None = None


class Arguments(Struct):
    """The arguments of a kernel's event in an ONNX Runtime profile that this package uses: operator, execution
    provider, types and shapes of inputs, and statistics of threads.
    """

    op_name: str = ""
    provider: str = ""
    input_type_shape: list[dict[str, list[int]]] = []
    # "" in the profile of a single run.
    thread_scheduling_stats: Any = ""


class Event(Struct):
    """An event in a profile file that ONNX Runtime has written, in the Chrome trace format. Times are in
    microseconds.
    """

    name: str
    cat: str = ""
    ph: str = "X"
    ts: int = 0
    dur: int = 0
    tid: int = 0
    # Decoded when needed.
    args: msgspec.Raw = msgspec.Raw(b"{}")


def read_events(path: Path) -> list[Event]:
    """Return the events in a profile file of ONNX Runtime. Raises OSError if the file cannot be read, and ValueError if
    it is incomplete or not a profile.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Event])
    except msgspec.DecodeError as error:
        raise ValueError(f"not a profile of ONNX Runtime: {error}") from None


def events_of_runs(path: Path) -> list[tuple[Event, list[Event]]]:
    """Return the event of each run of the model in a profile file, in order, with the events during that run.

    Raises OSError if the file cannot be read, and ValueError if it is incomplete or not a profile.
    """
    events = read_events(path)
    runs = _runs_of_events(events)
    lasting = [event for event in events if event.ph == "X" and event.name != _RUN]
    return [(run, [event for event in lasting if _is_within(event.ts, run)]) for run in runs]


def read_runs(path: Path) -> list[ForwardPass]:
    """Return the runs of the model in a profile file as forward passes, in order. Their starts are in microseconds
    since the recording of this file began.

    Raises OSError if the file cannot be read, and ValueError if it is incomplete or not a profile.
    """
    events = read_events(path)
    runs = _runs_of_events(events)
    nodes = sorted((e for e in events if e.cat == "Node" and e.name.endswith(_KERNEL)), key=lambda e: (e.ts, -e.dur))
    try:
        kernels = list(_kernels((node, msgspec.json.decode(node.args, type=Arguments)) for node in nodes))
    except msgspec.DecodeError as error:
        raise ValueError(f"a kernel's arguments are not as expected: {error}") from None
    return [_run(path.name, run, kernels) for run in runs]


def _runs_of_events(events: list[Event]) -> list[Event]:
    runs = sorted((event for event in events if event.name == _RUN), key=lambda event: event.ts)
    if not runs:
        raise ValueError("it contains no run of a model")
    return runs


def _is_within(moment: int, run: Event) -> bool:
    return run.ts <= moment < run.ts + max(1, run.dur)


def _run(file: str, run: Event, kernels: list[tuple[Kernel, int | None]]) -> ForwardPass:
    within = [pair for pair in kernels if _is_within(pair[0].start, run)]
    # The file's times are truncated to whole microseconds, so the last kernel may seem to outlast its run.
    end = max([run.ts + run.dur, *(kernel.start + kernel.duration for kernel, _ in within)])
    nested = _nest(replace(kernel, start=kernel.start - run.ts) for kernel, _ in within)
    num_tokens = next((number for _, number in within if number is not None), None)
    phase = UNKNOWN if num_tokens is None else PREFILL if num_tokens > 1 else DECODE
    return ForwardPass(file, run.ts, end - run.ts, tuple(nested), phase, num_tokens)


def _kernels(nodes: Iterable[tuple[Event, Arguments]]) -> Iterator[tuple[Kernel, int | None]]:
    """Yield a Kernel for each event of a profile file, with the number of tokens that it looks up if it is an embedding
    lookup, otherwise with None. `nodes` has the events with their arguments.
    """
    shared_before = 0
    for event, args in nodes:
        use, shared_before = _thread_use(args.thread_scheduling_stats, shared_before)
        kernel = Kernel(
            node=event.name.removesuffix(_KERNEL),
            operator=args.op_name or "unknown",
            provider=args.provider,
            start=event.ts,
            duration=event.dur,
            self_time=event.dur,
            thread=event.tid,
            threads=use,
        )
        yield kernel, _num_tokens(args)


def _nest(kernels: Iterable[Kernel]) -> list[Kernel]:
    """Return copies of the kernels with their nesting depth, and with their self time, which is the duration without
    the kernels nested in them.

    Only kernels of the same thread are nested. `kernels` must be sorted by start, and those with equal starts by
    duration, the longest first.
    """
    nested: list[Kernel] = []
    open_ones: dict[int, list[int]] = {}
    for kernel in kernels:
        around = open_ones.setdefault(kernel.thread, [])
        while around and nested[around[-1]].start + nested[around[-1]].duration < kernel.start + max(
            1, kernel.duration
        ):
            around.pop()
        if around:
            outer = nested[around[-1]]
            nested[around[-1]] = replace(outer, self_time=max(0, outer.self_time - kernel.duration))
        nested.append(replace(kernel, depth=len(around)))
        around.append(len(nested) - 1)
    return nested


def _thread_use(stats: Any, shared_before: int) -> tuple[ThreadUse | None, int]:
    """Return what the threads did during a kernel, and how many pieces of work threads other than the calling one have
    run from the beginning of the file to the end of this kernel.

    `stats` are the statistics in the kernel's event; without valid statistics, the first result is None.
    `shared_before` is the number of pieces up to the end of the previous kernel, which is subtracted because ONNX
    Runtime counts them from the beginning.
    """
    try:
        main = stats["main_thread"]
        shared = sum(int(thread["num_run"]) for thread in stats["sub_threads"].values())
        wait = int(main["Wait"]) + int(main["WaitRevoke"])
        return ThreadUse(int(main["Run"]), wait, max(0, shared - shared_before)), shared
    except (TypeError, KeyError, AttributeError, ValueError):
        return None, shared_before


def _num_tokens(args: Arguments) -> int | None:
    """Return the number of tokens that a kernel reads if it is an embedding lookup, which is the number of columns of
    its indices [batch, tokens]; None for other kernels. `args` are the arguments of the kernel's event.
    """
    if args.op_name.startswith("Gather"):
        for shapes in args.input_type_shape:
            for kind, shape in shapes.items():
                if kind in ("int64", "int32") and len(shape) == 2:
                    return shape[1]
    return None


_STAMP = re.compile(r"_(\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d)_(\d{3})\.json$")


def read_profile(path: Path, session: str | None = None) -> Profile:
    """Return the profile of one session whose manifest is in the folder `path`, or in a folder directly below it.

    `session` is the id of the session; None stands for the last session. If no session has a manifest, all files of the
    folder are read as one profile. `path` may also be a single file that ONNX Runtime has written. Raises
    ProfileNotFound if there is no such session or no readable profile.
    """
    if path.is_file():
        return _without_manifest(path.name, path.parent, [path])
    manifest = find_session(path, session)
    return (
        _without_manifest(path.resolve().name, path, list(path.glob("*.json")))
        if manifest is None
        else read_session(manifest)
    )


def find_session(root: Path, session: str | None = None) -> Manifest | None:
    """Return the manifest of the profile session with the id `session`, or of the last session if that is None; None if
    the folder `root` has no session at all.

    Raises ProfileNotFound if the folder does not exist or has no session with this id.
    """
    try:
        manifests = find_manifests(root)
    except FileNotFoundError:
        raise ProfileNotFound(f"there is no folder {root}; it is made when a profile is written") from None
    except OSError as error:
        raise ProfileNotFound(f"{root}: {error.strerror}") from None
    matches = [manifest for manifest in manifests if session in (None, manifest.session.id)]
    if session is not None and not matches:
        ids = ", ".join(manifest.session.id for manifest in manifests) or "none"
        raise ProfileNotFound(f"no session {quoted(session)} in {root}; it has: {ids}", param="session")
    return matches[-1] if matches else None


def read_session(manifest: Manifest) -> Profile:
    """Read the files that a manifest names and return their profile. Files that cannot be read are listed in its
    `unread`. Raises ProfileNotFound if none can be read.
    """
    unread: dict[str, str] = {}
    passes = []
    for record in manifest.passes:
        for run in _runs(manifest.path.parent / record.file, unread):
            start = round((record.started - manifest.session.started) * 1e6) + run.start
            forward_pass = replace(run, start=start, phase=record.phase, num_tokens=record.num_tokens, record=record)
            passes.append(forward_pass)
    profiled = None if manifest.end is None else manifest.end.profiled
    return _profile(Profile(manifest.session.id, manifest.path.parent, passes, manifest.session, unread, profiled))


def _without_manifest(name: str, folder: Path, files: list[Path]) -> Profile:
    """Read profile files of ONNX Runtime that belong to no manifest, and return their profile with the name `name`.

    The files are ordered by the times in their names, which are exact to the millisecond. A file without a time in its
    name follows the file before it without a gap. Raises ProfileNotFound if no file has a forward pass.
    """
    unread: dict[str, str] = {}
    passes: list[ForwardPass] = []
    origin: int | None = None
    for path in sorted(files, key=lambda path: (_begun(path) or 0, path.name)):
        begun, after = _begun(path), passes[-1].start + passes[-1].duration if passes else 0
        origin = begun if origin is None else origin
        offset = after if begun is None or origin is None else max(after, begun - origin)
        passes += [replace(run, start=offset + run.start) for run in _runs(path, unread)]
    return _profile(Profile(name, folder, passes, None, unread))


def _profile(profile: Profile) -> Profile:
    """Return the profile with the starts of all passes shifted so that its first pass starts at 0.

    Raises ProfileNotFound if the profile has no pass.
    """
    if not profile.passes:
        reason = "; ".join(f"{name}: {why}" for name, why in list(profile.unread.items())[:3])
        raise ProfileNotFound(f"{profile.name} has no profile of a forward pass{f' ({reason})' if reason else ''}")
    first = min(forward_pass.start for forward_pass in profile.passes)
    return replace(
        profile, passes=[replace(forward_pass, start=forward_pass.start - first) for forward_pass in profile.passes]
    )


def _runs(path: Path, unread: dict[str, str]) -> Iterator[ForwardPass]:
    try:
        yield from read_runs(path)
    except (OSError, ValueError) as error:
        unread[path.name] = str(error)


def _begun(path: Path) -> int | None:
    """Return when the recording of a profile file began, according to the file's name, in microseconds since 1970; None
    if the name has no time.
    """
    match = _STAMP.search(path.name)
    if match is None:
        return None
    moment = datetime.strptime(match[1], "%Y-%m-%d_%H-%M-%S")
    return round((moment - datetime(1970, 1, 1)).total_seconds()) * 1_000_000 + int(match[2]) * 1000
