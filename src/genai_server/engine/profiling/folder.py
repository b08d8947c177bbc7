"""The folder of per-token profiles and its limits; ONNX Runtime writes the files, one for each forward pass."""

import math
import os
import shutil
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from genai_server.profiles.manifest import Manifest
from genai_server.profiles.retention import end_of, removable, remove, remove_all

DEFAULT_PREFIX = "onnxruntime_run_profile"
# So much of the disk is left to others, in bytes.
LEAST_FREE = 32 * 1024 * 1024
# The share of a limit that is still in use when room has been made.
_FULL = 0.9


class ProfileFolder:
    """Counts what lies below `root`, over all devices, and says when a limit is reached.

    The files of an engine lie in the folder `name`, because their names tell engines apart in nothing. `max_age` is in
    seconds.
    """

    def __init__(self, root: Path, name: str, *, max_files: int, max_bytes: int, max_age: float = math.inf) -> None:
        self.directory = root / name.replace(":", "-")
        self._root = root
        self._max_files = max_files
        self._max_bytes = max_bytes
        self._max_age = max_age
        self._counted = 0, 0
        self._looks_left = 0  # until all files are counted anew

    def prepare(self) -> None:
        """Make the folder: without it ONNX Runtime writes nothing and says nothing. Raises OSError."""
        self.directory.mkdir(parents=True, exist_ok=True)

    def path_prefix(self, prefix: str) -> str:
        """The value for the runtime option enable_profiling."""
        return str(self.directory.resolve() / prefix)

    def usage(self) -> tuple[int, int]:
        """Number and total bytes of the profiles of all devices."""
        sizes = [size for folder in self._root.glob("*") for size in _sizes(folder)]
        return len(sizes), sum(sizes)

    def wrote(self, sizes: Sequence[int]) -> None:
        """Count new files of this engine, of so many bytes each."""
        files, size = self._counted
        self._counted = files + len(sizes), size + sum(sizes)

    def limit_reached(self) -> str | None:
        """The limit that allows no further file, in words, or None.

        This is asked at every profiled pass, and counting a thousand files takes 4 ms: they are counted anew at every
        hundredth of their number of calls. So other engines' files may exceed a limit by a hundredth.
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
        if self.directory.exists() and (free := shutil.disk_usage(self.directory).free) < LEAST_FREE:
            return f"{free} bytes are free on the disk of GENAI_PROFILE_DIR, at least {LEAST_FREE} must be"
        return None

    def remove_old(self) -> None:
        """Remove the sessions, of any device, that ended too long ago, and of the others, which may have no files, all
        but so many as there may be files.
        """
        now = time.time()
        old: list[Manifest] = []
        younger: list[Manifest] = []
        for manifest in removable(self._root, now):
            (old if end_of(manifest) < now - self._max_age else younger).append(manifest)
        remove_all([*old, *younger[: max(0, len(younger) - self._max_files)]])
        self._looks_left = 0

    def make_room(self, keep: Collection[Path]) -> str | None:
        """At a limit, remove the oldest sessions until a tenth is free; returns the limit that is reached nevertheless.

        Those whose manifests are in `keep`, and those that other engines have open, stay. All manifests are read for
        it: with less room the next passes would read them again.
        """
        if self.limit_reached() is None:
            return None
        files, size = self.usage()  # somebody may have removed some
        for manifest in removable(self._root, time.time(), keep=keep):
            has_room = files <= _FULL * self._max_files and size <= _FULL * self._max_bytes
            if has_room and shutil.disk_usage(self._root).free >= LEAST_FREE / _FULL:
                break
            sizes = [path.stat().st_size for path in manifest.files if path.is_file()]
            if sizes:  # else it takes none of the room
                with suppress(OSError):
                    remove(manifest)
                    files, size = files - len(sizes), size - sum(sizes)
        self._looks_left = 0
        return self.limit_reached()


def _sizes(folder: Path) -> Iterator[int]:
    """The sizes of the profiles in a folder, if it is one; without a Path for each, for this is asked at every pass."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):  # removed meanwhile, or not ours to look at
                if entry.name.endswith(".json"):
                    yield entry.stat().st_size


def wait_for_next_file_name() -> None:
    """Wait until the clock shows another millisecond: the names of two files differ in nothing else."""
    start = time.time_ns() // 1_000_000
    while time.time_ns() // 1_000_000 == start:
        time.sleep(0.0002)
