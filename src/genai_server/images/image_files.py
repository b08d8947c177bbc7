"""Prepared images as files, which an engine reads; within a limit of bytes, the least recently used are removed."""

import shutil
import threading
import weakref
from collections import OrderedDict
from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True, eq=False)
class ReadImage:
    """An image that is ready for a vision model. Its file exists as long as the object is alive."""

    # SHA-256 in hex of what the image was made from: the bytes, the detail and the model.
    digest: str
    # The tokens that replace the placeholder in the prompt.
    expansion: list[int]
    # Frames, rows and columns in tokens; None for models without positions in three dimensions.
    grid: tuple[int, int, int] | None
    # A .npz file with the tensors of onnxruntime-genai's processor, by its names, without those of the prompt.
    path: Path


@dataclass
class _Kept:
    """A file that is kept."""

    # Describes it; this object is given to no one.
    image: ReadImage
    num_bytes: int
    # What was given to others, if it is still in use.
    given: "weakref.ref[ReadImage]"


class ImageFiles:
    """Files in a folder that only this user can enter. Any thread may call the methods; must be closed.

    Files of images that are in use are kept even over the limit.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder = folder
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        # Keyed by digest, in order of use.
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self.num_bytes = 0

    def create(self) -> None:
        """Create the folder, if it does not exist yet."""
        self.folder.mkdir(mode=0o700, exist_ok=True)

    def path(self, digest: str) -> Path:
        """Where the file of an image belongs."""
        return self.folder / f"{digest}.npz"

    def get(self, digest: str) -> ReadImage | None:
        """The image, if its file is kept."""
        with self._lock:
            kept = self._kept.get(digest)
            if kept is None:
                return None
            self._kept.move_to_end(digest)
            return _give(kept)

    def add(self, image: ReadImage) -> ReadImage:
        """Keep an image whose file has been written; returns the object to use."""
        num_bytes = image.path.stat().st_size
        with self._lock:
            if (old := self._kept.get(image.digest)) is not None:  # read twice, and the file is that of the second time
                self.num_bytes -= old.num_bytes
                old.num_bytes = num_bytes
            else:
                self._kept[image.digest] = _Kept(image, num_bytes, weakref.ref(replace(image)))
            self.num_bytes += num_bytes
            self._kept.move_to_end(image.digest)
            given = _give(self._kept[image.digest])
            self._evict()
            return given

    def close(self) -> None:
        """Remove all files with their folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _evict(self) -> None:
        for digest, kept in list(self._kept.items()):
            if self.num_bytes <= self._max_bytes:
                return
            if kept.given() is None:
                del self._kept[digest]
                self.num_bytes -= kept.num_bytes
                kept.image.path.unlink(missing_ok=True)


def _give(kept: _Kept) -> ReadImage:
    image = kept.given()
    if image is None:
        image = replace(kept.image)
        kept.given = weakref.ref(image)
    return image
