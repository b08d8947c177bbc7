"""The files of profiles, which ONNX Runtime writes, one for each profiled forward pass. `ProfileFolder` is the folder
of an engine's profiles and keeps limits on number, size and age; `ProfileManifest` writes the manifest of each profile
session: which file belongs to which pass, request and token.

The names of ONNX Runtime's files contain only a prefix and the time. The files of a pass are therefore those that were
not in the folder before the pass.
"""

import math
import os
import platform
import shutil
import sys
import time
from collections import abc
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import Distribution
from pathlib import Path
from tempfile import TemporaryFile

from msgspec.structs import replace

from genai_server import __version__
from genai_server.engine.sequence import Sequence
from genai_server.errors import Unavailable
from genai_server.messages.admin import Profiled, ProfilePlan
from genai_server.messages.launch import EngineSpec
from genai_server.options.device import DEFAULT_OPTIONS, DeviceOptions
from genai_server.options.session import SPINNING, THREADS
from genai_server.profiles.manifest import (
    DECODE,
    PREFILL,
    SUFFIX,
    End,
    Line,
    Manifest,
    PassRecord,
    Session,
    encode_line,
    end_of,
    removable,
    remove,
    remove_all,
)
from genai_server.system.resources import usable_cores

DEFAULT_PREFIX = "onnxruntime_run_profile"
# Minimum free bytes of the disk.
MIN_FREE = 32 * 1024 * 1024
# Freeing space reduces the usage to this share of a limit.
_FULL = 0.9
_LIBRARIES = "onnxruntime*.dist-info"


class ProfileFolder:
    """The folder with the profiles of one engine, and the limits for the profiles of all engines together.

    The folder is the subfolder `name` of `root`. Each engine has one of its own, because the names of ONNX Runtime's
    files do not show the engine. `max_files` is the maximum number of profiles, `max_bytes` their total size, and
    `max_age` the age in seconds at which `remove_old` removes a profile session.
    """

    def __init__(self, root: Path, name: str, *, max_files: int, max_bytes: int, max_age: float = math.inf) -> None:
        self.directory = root / name.replace(":", "-")
        self._root = root
        self._max_files = max_files
        self._max_bytes = max_bytes
        self._max_age = max_age
        self._counted = 0, 0
        self._num_until_recount = 0  # calls until all files are counted again

    def prepare(self) -> None:
        """Create the engine's folder, and test that files can be written there. Raises Unavailable if they cannot,
        because ONNX Runtime itself does not report that.
        """
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=self.directory):
                pass
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise Unavailable(f"GENAI_PROFILE_DIR={self._root}: profiles cannot be written: {reason}") from error

    def path_prefix(self, prefix: str) -> str:
        """Return the path with which the names of profiles begin, for profiles with the file prefix `prefix` in this
        folder. It is a value for ONNX Runtime's option `enable_profiling`; ONNX Runtime appends the time to it.
        """
        return str(self.directory.resolve() / prefix)

    def usage(self) -> tuple[int, int]:
        """Count the profiles of all engines. Returns their number and their total size in bytes."""
        sizes = [size for folder in self._root.glob("*") for size in _sizes(folder)]
        return len(sizes), sum(sizes)

    def wrote(self, sizes: abc.Sequence[int]) -> None:
        """Count new profiles of this engine, so that `limit_reached` takes them into account. `sizes` are their sizes
        in bytes.
        """
        files, size = self._counted
        self._counted = files + len(sizes), size + sum(sizes)

    def limit_reached(self) -> str | None:
        """Return a message that names the limit because of which no further profile may be written; None if no limit is
        reached.

        This is called for every profiled pass, and counting a thousand files takes 4 ms. So the files are counted again
        only after a number of calls that is a hundredth of the number of files. Until then, the profiles of other
        engines may exceed a limit by about as much.
        """
        if self._num_until_recount == 0:
            self._counted = self.usage()
            self._num_until_recount = 1 + self._counted[0] // 100
        self._num_until_recount -= 1
        files, size = self._counted
        if files >= self._max_files:
            return f"{files} profiles reach GENAI_PROFILE_MAX_FILES ({self._max_files})"
        if size >= self._max_bytes:
            return f"{size} bytes of profiles reach GENAI_PROFILE_MAX_BYTES ({self._max_bytes})"
        if self.directory.exists() and (free := shutil.disk_usage(self.directory).free) < MIN_FREE:
            return f"{free} bytes are free on the disk of GENAI_PROFILE_DIR, and at least {MIN_FREE} are required"
        return None

    def remove_old(self) -> None:
        """Remove the files of profile sessions, of all engines, that ended more than `max_age` seconds ago.

        Of the younger sessions, the newest stay, at most as many as files are allowed; the others are removed, because
        sessions without files would otherwise add up.
        """
        now = time.time()
        old: list[Manifest] = []
        younger: list[Manifest] = []
        for manifest in removable(self._root, now):
            (old if end_of(manifest) < now - self._max_age else younger).append(manifest)
        remove_all([*old, *younger[: max(0, len(younger) - self._max_files)]])
        self._num_until_recount = 0

    def make_room(self, keep: Collection[Path]) -> str | None:
        """If a limit is reached, remove the oldest profile sessions until a tenth of the limit is free.

        Sessions whose manifests are at the paths in `keep`, and sessions to which other engines still write, are not
        removed. Returns a message about a limit that is still reached afterwards, otherwise None. A tenth is freed at
        once because all manifests must be read to find the oldest sessions, which should not be repeated for each of
        the next passes. Raises OSError if the disk cannot be read.
        """
        if self.limit_reached() is None:
            return None
        files, size = self.usage()  # an operator may have removed some
        for manifest in removable(self._root, time.time(), keep=keep):
            has_room = files <= _FULL * self._max_files and size <= _FULL * self._max_bytes
            if has_room and shutil.disk_usage(self._root).free >= MIN_FREE / _FULL:
                break
            sizes = [path.stat().st_size for path in manifest.files if path.is_file()]
            if sizes:  # a session without files frees nothing
                with suppress(OSError):
                    remove(manifest)
                    files, size = files - len(sizes), size - sum(sizes)
        self._num_until_recount = 0
        return self.limit_reached()


def _sizes(folder: Path) -> Iterator[int]:
    """Yield the sizes in bytes of the profiles in the folder `folder`; nothing if there is no such folder.

    This is called during profiled passes, so it creates no Path object for each file.
    """
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):  # removed in the meantime, or not readable
                if entry.name.endswith(".json"):
                    yield entry.stat().st_size


def wait_for_next_file_name() -> None:
    """Wait until the clock's next millisecond, so that the profile of the next pass gets another file name: ONNX
    Runtime's names differ only in their time.
    """
    start = time.time_ns() // 1_000_000
    while time.time_ns() // 1_000_000 == start:
        time.sleep(0.0002)


def profile_folder(spec: EngineSpec) -> ProfileFolder:
    """Return the folder for the profiles of an engine, with the limits that `spec`, the engine's settings, has for
    profiles.
    """
    return ProfileFolder(
        Path(spec.profile_dir),
        spec.profile_folder or spec.device,
        max_files=spec.profile_max_files,
        max_bytes=spec.profile_max_bytes,
        max_age=spec.profile_max_age,
    )


def session_template(device: str, model_dir: Path, threads: int, options: DeviceOptions = DEFAULT_OPTIONS) -> Session:
    """Return the contents that the manifests of all profile sessions of an engine share: the device, the model, the
    number of threads, and versions of software. Values of a single session, such as its id, are empty.

    `threads` is the configured number of threads; 0 stands for the number of usable cores. A number of threads in
    `options`, the options of the device, takes precedence.
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
    """Return the versions of the installed ONNX Runtime packages by the names of the packages.

    No other packages are read, because reading all of them would make the start of an engine a quarter longer.
    """
    folders = [folder for path in sys.path for folder in Path(path).glob(_LIBRARIES)]
    # Of two with the same name, Python imports the first.
    return {library.name: library.version for library in map(Distribution.at, reversed(folders))}


@dataclass(frozen=True)
class _StateBeforePass:
    """What is recorded before a profiled pass, to be compared with the state after it: the names of the files in the
    folder, the number of tokens that the sequence has read, and the times of clocks.
    """

    files: frozenset[str]
    position: int
    started: float
    clock: float
    cpu_clock: float


class ProfileManifest:
    """Writes the manifests of an engine's profile sessions to its folder: for each session a file that lists the
    profiles with the pass, request and token of each.

    A session records the profiles whose names begin with its file prefix; a prefix has at most one open session. A
    session that follows a plan (which names what to profile, and for how long) begins with `begin`; any other session
    begins with the first profile that has its prefix. `directory` is the folder, and `session` has the contents that
    all manifests share. The attribute `num_begun` counts the sessions that have begun.
    """

    def __init__(self, directory: Path, session: Session) -> None:
        self._directory = directory
        self._about = session
        self._open: dict[str, Path] = {}
        self._before: _StateBeforePass | None = None
        self.num_begun = 0

    @property
    def open_sessions(self) -> frozenset[Path]:
        """Paths of the manifests of the sessions that have not ended."""
        return frozenset(self._open.values())

    def begin(self, plan: ProfilePlan) -> str:
        """Begin a session that follows `plan`, and write its manifest, before there are any profiles. Returns the id of
        the session. Raises OSError if the manifest cannot be written.
        """
        return self._begin(plan.prefix, time.time(), plan).name.removesuffix(SUFFIX)

    def end(self, prefix: str, reason: str | None = None, profiled: Profiled | None = None) -> None:
        """End the open session with the file prefix `prefix`, and write the end to its manifest. Does nothing if there
        is no such session. If the disk is full, the session ends, but its manifest does not show it.

        `reason` says why the session ends; None if an operator has ended it. `profiled` has the results of a session
        that follows a plan; None for any other session.
        """
        path = self._open.pop(prefix, None)
        with suppress(OSError):
            if path is not None and path.exists():
                _write(path, End(time.time(), reason, profiled))

    def end_except(self, prefixes: Collection[str], reason: str | None = None) -> None:
        """End all open sessions whose file prefixes are not in `prefixes`. `reason` says why they end; None if an
        operator has ended them.
        """
        for prefix in set(self._open).difference(prefixes):
            self.end(prefix, reason)

    def before_step(self, sequence: Sequence) -> None:
        """Record the names of the files in the folder and the times of clocks, immediately before a pass in which
        `sequence` is profiled. `after_step` or `drop_step` must follow.
        """
        files = frozenset(self._files())
        self._before = _StateBeforePass(files, sequence.num_read, time.time(), time.perf_counter(), time.process_time())

    def after_step(self, sequence: Sequence) -> list[int]:
        """Find the files that ONNX Runtime has written since `before_step`, and add them to the manifest of the session
        that profiles `sequence`. Returns the sizes of the files in bytes.

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
        """Remove the profiles with the file prefix `prefix` that ONNX Runtime has written since `before_step`, because
        the pass was interrupted or has failed. Files that cannot be removed stay.
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
    """Return whether the profile at `path` is complete, which means that its JSON list ends. On a full disk, ONNX
    Runtime writes as much as fits and reports no error. Raises OSError if the file cannot be read.
    """
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 4))
        return file.read().rstrip().endswith(b"]")


def _write(path: Path, line: Line) -> None:
    with path.open("ab") as file:
        file.write(encode_line(line))
