"""Writes the manifest of each profile session: which file belongs to which pass, request and token.

The names of ONNX Runtime's files contain only a prefix and the time. The files of a pass are those that were not in the
folder before the pass.
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
from genai_server.messages.admin import Profiled, ProfilePlan
from genai_server.options.device import DEFAULT_OPTIONS, DeviceOptions
from genai_server.options.session import SPINNING, THREADS
from genai_server.profiles.manifest import DECODE, PREFILL, SUFFIX, End, Line, PassRecord, Session, encode_line
from genai_server.system.resources import usable_cores

_LIBRARIES = "onnxruntime*.dist-info"


def about_engine(device: str, model_dir: Path, threads: int, options: DeviceOptions = DEFAULT_OPTIONS) -> Session:
    """Return the contents that the manifests of all profile sessions of an engine share.

    `threads` is the configured number of threads, 0 for as many as there are usable cores; a number in `options` takes
    precedence.
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
    """Versions of the installed ONNX Runtime packages, by name.

    Only these are read, because reading all installed packages would make the start of an engine a quarter longer.
    """
    folders = [folder for path in sys.path for folder in Path(path).glob(_LIBRARIES)]
    # Of two with the same name, Python imports the first.
    return {library.name: library.version for library in map(Distribution.at, reversed(folders))}


@dataclass(frozen=True)
class _Before:
    """The state before a profiled pass: names of the files in the folder, number of tokens read, and the times of
    clocks.
    """

    files: frozenset[str]
    position: int
    started: float
    clock: float
    cpu_clock: float


class ProfileManifest:
    """Writes the manifests of profile sessions to the folder of an engine.

    A session records files whose names begin with its prefix; a prefix has at most one open session. A session that
    follows a plan begins with `begin`, any other with the first file that has its prefix. `num_begun` is the number of
    sessions that have begun. `about` has the contents that all manifests share.
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
        """Begin a session that follows a plan, before it has files. Returns the session's id. Raises OSError."""
        return self._begin(plan.prefix, time.time(), plan).name.removesuffix(SUFFIX)

    def end(self, prefix: str, reason: str | None = None, profiled: Profiled | None = None) -> None:
        """End the open session with the file prefix `prefix`, if there is one. If the disk is full, its manifest gets
        no end.

        `reason` says why the session ends; None if an operator has ended it. `profiled` has the results of a plan.
        """
        path = self._open.pop(prefix, None)
        with suppress(OSError):
            if path is not None and path.exists():
                _write(path, End(time.time(), reason, profiled))

    def end_others(self, prefixes: Collection[str], reason: str | None = None) -> None:
        """End all open sessions whose file prefixes are not in `prefixes`. `reason` says why."""
        for prefix in set(self._open).difference(prefixes):
            self.end(prefix, reason)

    def before_step(self, sequence: Sequence) -> None:
        """Record the files in the folder and the times of clocks immediately before a pass in which a sequence is
        profiled.
        """
        files = frozenset(self._files())
        self._before = _Before(files, sequence.num_read, time.time(), time.perf_counter(), time.process_time())

    def after_step(self, sequence: Sequence) -> list[int]:
        """Add the files that the pass after `before_step` has written to the manifest. Returns their sizes in bytes.

        Raises OSError if the manifest cannot be written or a file is incomplete.
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
        """Remove the files with the prefix `prefix` that the pass after `before_step` has written, because the pass was
        interrupted or has failed. Files that cannot be removed stay.
        """
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
    """Whether a profile is a complete JSON list. On a full disk, ONNX Runtime silently writes as much as fits."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 4))
        return file.read().rstrip().endswith(b"]")


def _write(path: Path, line: Line) -> None:
    with path.open("ab") as file:
        file.write(encode_line(line))
