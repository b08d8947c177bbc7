"""The folder of per-token profiles and its limits; ONNX Runtime writes the files, one for each forward pass."""

import math
import os
import shutil
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from genai_server.profiles.retention import make_room, removable

DEFAULT_PREFIX = "onnxruntime_run_profile"
# So much of the disk is left to others, in bytes.
LEAST_FREE = 32 * 1024 * 1024


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

    def limit_reached(self) -> str | None:
        """The limit that allows no further file, in words, or None."""
        files, size = self.usage()
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
        sessions = removable(self._root, now)
        older_than = now - self._max_age
        make_room(sessions, lambda: False, older_than)
        make_room(sessions[: max(0, len(sessions) - self._max_files)], lambda: True, older_than)

    def make_room(self, keep: Collection[Path]) -> str | None:
        """Remove the oldest sessions for as long as a limit is reached; returns the one that is nevertheless.

        Those whose manifests are in `keep`, and those that other engines have open, stay.
        """
        reached = self.limit_reached()
        if reached is None:
            return None
        make_room(
            removable(self._root, time.time(), keep=keep),
            lambda: self.limit_reached() is not None,
            older_than=-math.inf,
        )
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
