"""The folder of the profiles that ONNX Runtime writes, one file for each profiled forward pass, and the folder's
limits.
"""

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
from genai_server.profiles.manifest import Manifest, end_of, removable, remove, remove_all

DEFAULT_PREFIX = "onnxruntime_run_profile"
# Minimum free bytes of the disk.
MIN_FREE = 32 * 1024 * 1024
# Freeing space reduces the usage to this share of a limit.
_FULL = 0.9


class ProfileFolder:
    """The subfolder with the profiles of one engine, and the limits that hold for the profiles of all engines together.

    The subfolder of `root` is called `name`, because the names of ONNX Runtime's files do not show the engine.
    `max_bytes` is the total size, `max_age` is in seconds.
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
        """Full path of profiles whose names begin with `prefix`, without the rest of the name, as the runtime option
        `enable_profiling` takes it.
        """
        return str(self.directory.resolve() / prefix)

    def usage(self) -> tuple[int, int]:
        """Number and total size in bytes of the profiles of all engines."""
        sizes = [size for folder in self._root.glob("*") for size in _sizes(folder)]
        return len(sizes), sum(sizes)

    def wrote(self, sizes: Sequence[int]) -> None:
        """Count new profiles of this engine, whose sizes in bytes are `sizes`."""
        files, size = self._counted
        self._counted = files + len(sizes), size + sum(sizes)

    def limit_reached(self) -> str | None:
        """A message about the limit because of which no further profile may be written; None if no limit is reached.

        This is called for every profiled pass, and counting a thousand files takes 4 ms. So the files are counted again
        only after a number of calls that is a hundredth of the number of files. Until then, the profiles of other
        engines may exceed a limit by about as much.
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
        """Remove the profile sessions of all engines that ended more than `max_age` seconds ago.

        Of the others, the newest stay, as many as files are allowed; without this limit, sessions without files would
        add up.
        """
        now = time.time()
        old: list[Manifest] = []
        younger: list[Manifest] = []
        for manifest in removable(self._root, now):
            (old if end_of(manifest) < now - self._max_age else younger).append(manifest)
        remove_all([*old, *younger[: max(0, len(younger) - self._max_files)]])
        self._looks_left = 0

    def make_room(self, keep: Collection[Path]) -> str | None:
        """If a limit is reached, remove the oldest profile sessions until a tenth of the limit is free.

        Sessions whose manifests are in `keep`, and sessions to which other engines still write, are not removed.
        Returns a message about a limit that is still reached, otherwise None. A tenth is freed at once because all
        manifests have to be read for that, which should not be repeated for each of the next passes.
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
    """Yield the sizes in bytes of the profiles in a folder; nothing if there is no such folder.

    This is called during profiled passes, so it creates no Path object for each file.
    """
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):  # removed in the meantime, or not readable
                if entry.name.endswith(".json"):
                    yield entry.stat().st_size


def wait_for_next_file_name() -> None:
    """Wait for the clock's next millisecond, because the names of ONNX Runtime's files differ only in their time."""
    start = time.time_ns() // 1_000_000
    while time.time_ns() // 1_000_000 == start:
        time.sleep(0.0002)


def profile_folder(spec: EngineSpec) -> ProfileFolder:
    """Return the folder for an engine's profiles, with the limits in the engine's settings."""
    return ProfileFolder(
        Path(spec.profile_dir),
        spec.profile_folder or spec.device,
        max_files=spec.profile_max_files,
        max_bytes=spec.profile_max_bytes,
        max_age=spec.profile_max_age,
    )
