"""Writes the manifest of each profile session: to which request and token each file of a profiled pass belongs.

ONNX Runtime's file names contain only a prefix and the time. The files of a pass are those that were not in the folder
before the pass.
"""

import os
import platform
import sys
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import Distribution
from pathlib import Path

from msgspec.structs import replace

from genai_server import __version__
from genai_server.engine.sequence import Sequence
from genai_server.messages.profile_plan import Profiled, ProfilePlan
from genai_server.options.device import DEFAULT_OPTIONS, DeviceOptions
from genai_server.options.session import SPINNING, THREADS
from genai_server.profiles.manifest import DECODE, PREFILL, SUFFIX, End, Line, PassRecord, Session, encode_line
from genai_server.system.cores import usable_cores

_LIBRARIES = "onnxruntime*.dist-info"


def about_engine(device: str, model_dir: Path, threads: int, options: DeviceOptions = DEFAULT_OPTIONS) -> Session:
    """The part of a manifest that is the same for all profile sessions of an engine.

    `threads` 0 means the usable cores; a number in the options takes precedence.
    """
    versions = {"genai-server": __version__, "python": platform.python_version(), "platform": platform.platform()}
    cores = usable_cores()
    return Session(
        id="",
        prefix="",
        started=0,
        device=device,
        model=model_dir.resolve().name,
        threads=int(options.session.get(THREADS, "0")) or threads or cores,
        cores=cores,
        spins=options.entries.get(SPINNING) != "0",
        versions=versions | _library_versions(),
    )


def _library_versions() -> dict[str, str]:
    """Versions of the installed distributions of ONNX Runtime, by name.

    To read all installed distributions would take a quarter of an engine's start.
    """
    folders = [folder for path in sys.path for folder in Path(path).glob(_LIBRARIES)]
    # Of two with the same name, Python imports the first.
    return {library.name: library.version for library in map(Distribution.at, reversed(folders))}


@dataclass(frozen=True)
class _Before:
    """State before a profiled pass: names of the files in the folder, tokens read, and the times of clocks."""

    files: frozenset[str]
    position: int
    started: float
    clock: float
    cpu_clock: float


class ProfileManifest:
    """Writes the manifests of profile sessions in a device's folder. Each file prefix has at most one open session.

    A session begins with its first file, or earlier if it has a plan. The attribute `num_begun` counts the sessions.
    `about` is the part that all manifests share.
    """

    def __init__(self, directory: Path, about: Session) -> None:
        self._directory = directory
        self._about = about
        self._open: dict[str, Path] = {}
        self._before: _Before | None = None
        self.num_begun = 0

    @property
    def open_sessions(self) -> frozenset[Path]:
        """Paths of the manifests of the open sessions."""
        return frozenset(self._open.values())

    def begin(self, plan: ProfilePlan) -> str:
        """Begin a session that has no files yet. Returns its id. Raises OSError."""
        return self._begin(plan.prefix, time.time(), plan).name.removesuffix(SUFFIX)

    def end(self, prefix: str, reason: str | None = None, profiled: Profiled | None = None) -> None:
        """End the open session with a file prefix, if there is one. On a full disk, its manifest stays without an end.

        `reason` says why the session ends, and `profiled` has the results; None if there are none.
        """
        path = self._open.pop(prefix, None)
        with suppress(OSError):
            if path is not None and path.exists():
                _write(path, End(time.time(), reason, profiled))

    def end_others(self, prefixes: Collection[str], reason: str | None = None) -> None:
        """End all sessions whose prefix is not among `prefixes`."""
        for prefix in set(self._open).difference(prefixes):
            self.end(prefix, reason)

    def before_step(self, sequence: Sequence) -> None:
        """Record files and clocks before a pass with a profiled sequence. The pass must follow at once."""
        files = frozenset(self._files())
        self._before = _Before(files, sequence.num_read, time.time(), time.perf_counter(), time.process_time())

    def after_step(self, sequence: Sequence) -> list[int]:
        """Record the files that the pass since `before_step` has written. Returns their sizes in bytes.

        Raises OSError if a file cannot be recorded or is incomplete.
        """
        before, self._before = self._before, None
        sizes: list[int] = []
        if before is None:
            return sizes
        seconds, cpu_seconds = time.perf_counter() - before.clock, time.process_time() - before.cpu_clock
        for name in sorted(self._files() - before.files):
            record = PassRecord(
                file=name,
                request_id=sequence.request.request_id,
                phase=DECODE if sequence.num_produced else PREFILL,
                token=sequence.num_produced,
                position=before.position,
                num_tokens=sequence.num_read - before.position,
                started=before.started,
                seconds=seconds,
                cpu_seconds=cpu_seconds,
            )
            assert sequence.profile.active is not None
            prefix = sequence.profile.active
            _write(self._open.get(prefix) or self._begin(prefix, before.started), record)
            if not _is_whole(self._directory / name):
                raise OSError(f"ONNX Runtime could not write {name} completely")
            sizes.append((self._directory / name).stat().st_size)
        return sizes

    def drop_step(self, prefix: str) -> None:
        """Remove the files that an interrupted or failed pass has written under a prefix. Errors are ignored."""
        before, self._before = self._before, None
        for name in self._files() - before.files if before is not None else ():
            with suppress(OSError):
                if name.startswith(f"{prefix}_"):
                    (self._directory / name).unlink()

    def _begin(self, prefix: str, started: float, plan: ProfilePlan | None = None) -> Path:
        stamp = datetime.fromtimestamp(started).strftime("%Y-%m-%d_%H-%M-%S_%f")[:-3]
        name = f"{prefix}_{stamp}"
        path = self._directory / f"{name}{SUFFIX}"
        _write(path, replace(self._about, id=name, prefix=prefix, started=started, plan=plan))
        self._open[prefix] = path
        self.num_begun += 1
        return path

    def _files(self) -> set[str]:
        try:
            return {name for name in os.listdir(self._directory) if name.endswith(".json")}
        except FileNotFoundError:  # the folder was removed, and ONNX Runtime writes nothing either
            return set()


def _is_whole(path: Path) -> bool:
    """Whether a profile is a complete JSON list. On a full disk ONNX Runtime silently writes as much as fits."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 4))
        return file.read().rstrip().endswith(b"]")


def _write(path: Path, line: Line) -> None:
    with path.open("ab") as file:
        file.write(encode_line(line))
