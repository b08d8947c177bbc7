"""Folder of per-token profiles, with its limits. ONNX Runtime writes the files, one for each forward pass."""

import math
import os
import shutil
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile

from genai_server.errors import Unavailable
from genai_server.messages.launch import EngineSpec
from genai_server.profiles.manifest import Manifest
from genai_server.profiles.retention import end_of, removable, remove, remove_all

DEFAULT_PREFIX = "onnxruntime_run_profile"
# Minimum free bytes of the disk.
MIN_FREE = 32 * 1024 * 1024
# Freeing space reduces the usage to this share of a limit.
_FULL = 0.9


class ProfileFolder:
    """Counts the profiles of all devices below `root`, and checks the limits.

    The profiles of this engine lie in the subfolder `name`, because file names do not tell engines apart. `max_age` is
    in seconds.
    """

    def __init__(self, root: Path, name: str, *, max_files: int, max_bytes: int, max_age: float = math.inf) -> None:
        self.directory = root / name.replace(":", "-")
        self._root = root
        self._max_files = max_files
        self._max_bytes = max_bytes
        self._max_age = max_age
        self._counted = 0, 0
        self._looks_left = 0  # calls until all files are counted again

    def prepare(self) -> None:
        """Create the engine's folder, and test that files can be written there. Raises Unavailable if not.

        ONNX Runtime itself does not report that a profile cannot be written.
        """
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=self.directory):
                pass
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise Unavailable(f"GENAI_PROFILE_DIR={self._root}: profiles cannot be written: {reason}") from error

    def path_prefix(self, prefix: str) -> str:
        """Full path prefix for profiles with a file prefix, as the runtime option `enable_profiling` takes it."""
        return str(self.directory.resolve() / prefix)

    def usage(self) -> tuple[int, int]:
        """Number and total bytes of the profiles of all devices."""
        sizes = [size for folder in self._root.glob("*") for size in _sizes(folder)]
        return len(sizes), sum(sizes)

    def wrote(self, sizes: Sequence[int]) -> None:
        """Count new files of this engine, with these sizes in bytes."""
        files, size = self._counted
        self._counted = files + len(sizes), size + sum(sizes)

    def limit_reached(self) -> str | None:
        """Message about the limit that allows no further file; None if no limit is reached.

        This is called for every profiled pass, and counting a thousand files takes 4 ms. So files are counted again
        only after a number of calls that is a hundredth of the number of files. Until then, files of other engines may
        exceed a limit by about as much.
        """
        if self._looks_left == 0:
            self._counted = self.usage()
            self._looks_left = 1 + self._counted[0] // 100
        self._looks_left -= 1
        files, size = self._counted
        if files >= self._max_files:
            return f"{files} profiles reach GENAI_PROFILE_MAX_FILES ({self._max_files})"
        if size >= self._max_bytes:
            return f"{size} bytes of profiles reach GENAI_PROFILE_MAX_BYTES ({self._max_bytes})"
        if self.directory.exists() and (free := shutil.disk_usage(self.directory).free) < MIN_FREE:
            return f"{free} bytes are free on the disk of GENAI_PROFILE_DIR, and at least {MIN_FREE} are required"
        return None

    def remove_old(self) -> None:
        """Remove the profile sessions of all devices that ended longer than `max_age` ago.

        Of the others, at most as many stay as files are allowed, because sessions may have no files.
        """
        now = time.time()
        old: list[Manifest] = []
        younger: list[Manifest] = []
        for manifest in removable(self._root, now):
            (old if end_of(manifest) < now - self._max_age else younger).append(manifest)
        remove_all([*old, *younger[: max(0, len(younger) - self._max_files)]])
        self._looks_left = 0

    def make_room(self, keep: Collection[Path]) -> str | None:
        """At a limit, remove the oldest profile sessions until a tenth of the limit is free.

        Returns the message of a limit that is still reached; None if none is. Sessions with a manifest in `keep`, and
        open ones of other engines, stay. A tenth is freed because this function reads all manifests, which the next
        passes should not have to repeat.
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
        self._looks_left = 0
        return self.limit_reached()


def _sizes(folder: Path) -> Iterator[int]:
    """Sizes in bytes of the profiles in a folder; empty if there is no such folder.

    It is called for every pass, so it creates no Path object for each file.
    """
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):  # removed in the meantime, or not readable
                if entry.name.endswith(".json"):
                    yield entry.stat().st_size


def wait_for_next_file_name() -> None:
    """Wait for the next millisecond of the clock, because file names of profiles differ only in their time."""
    start = time.time_ns() // 1_000_000
    while time.time_ns() // 1_000_000 == start:
        time.sleep(0.0002)


def profile_folder(spec: EngineSpec) -> ProfileFolder:
    """The folder for the profiles of an engine, according to the engine's settings."""
    return ProfileFolder(
        Path(spec.profile_dir),
        spec.profile_folder or spec.device,
        max_files=spec.profile_max_files,
        max_bytes=spec.profile_max_bytes,
        max_age=spec.profile_max_age,
    )
