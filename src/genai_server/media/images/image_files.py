"""Prepared images as files, which engines read, and the disk space that the files occupy."""

import contextlib
import shutil
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from genai_server.workers.workers import Space


@dataclass(frozen=True, eq=False)
class ReadImage:
    """An image prepared for a vision model. Its file exists at least as long as this object."""

    # SHA-256 in hex of what the image was made from: the bytes, the detail and the model.
    digest: str
    # The tokens that replace the placeholder in the prompt.
    expansion: list[int]
    # Frames, rows and columns in tokens; None for models without positions in three dimensions.
    grid: tuple[int, int, int] | None
    # A .npz file with the tensors of onnxruntime-genai's processor, by its names, without those of the prompt.
    path: Path
    # The size of the file.
    num_bytes: int


class RequestSpace:
    """The disk space that a request has reserved for its images. Used on the event loop only; must be closed.

    Each file occupies a part of the space until no request uses the file. The rest is returned when the request is
    closed and none of its images is being prepared.
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        self._num_preparing = 0
        self._num_bytes = 0
        self._is_closed = False

    def begin(self) -> None:
        """Count an image that is being prepared."""
        self._num_preparing += 1

    def end(self) -> None:
        """Uncount an image that is no longer being prepared."""
        self._num_preparing -= 1
        self._return_rest()

    def add(self, num_bytes: int) -> None:
        """Count the bytes of a file that occupies a part of the space."""
        self._num_bytes += num_bytes

    def remove(self, num_bytes: int) -> None:
        """Uncount the bytes of a file."""
        self._num_bytes -= num_bytes
        self._return_rest()

    def close(self) -> None:
        """Mark that the request will prepare no more images."""
        self._is_closed = True
        self._return_rest()

    def _return_rest(self) -> None:
        if self._is_closed and not self._num_preparing:
            self.space.shrink(self._num_bytes)


@dataclass
class _Kept:
    """A cached file of a prepared image."""

    # Describes it; this object is given to no one.
    image: ReadImage
    # What was given to others, if it is still in use.
    given: "weakref.ref[ReadImage]"
    # The space of the request that has prepared it; None once it has been used by no request.
    space: RequestSpace | None


class ImageFiles:
    """Cache of prepared images: files in a folder that only this user can enter. Used on the event loop only; must be
    closed.

    A file first occupies space of the request that prepared it. When no request uses the file, it counts toward
    `max_bytes`, the limit for files that are cached for later requests. Beyond the limit, the least recently used files
    are removed, but none that is in use.

    `run_soon` schedules a function on the event loop. It must be thread-safe, because objects may be garbage-collected
    in any thread.
    """

    def __init__(
        self, folder: Path, max_bytes: int, run_soon: Callable[[Callable[[], None]], object] = lambda work: work()
    ) -> None:
        self.folder = folder
        self._max_bytes = max_bytes
        self._run_soon = run_soon
        # Keyed by digest, in order of use.
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        # Digests of images that have ended.
        self._ended: deque[str] = deque()
        # Bytes of the files that no request has space for.
        self.num_bytes = 0

    def __contains__(self, digest: str) -> bool:
        """Whether the prepared image with this digest is cached."""
        return digest in self._kept

    def create(self) -> None:
        """Create the folder if it does not exist."""
        self.folder.mkdir(mode=0o700, exist_ok=True)

    def path(self, digest: str) -> Path:
        """Return the path of the file for a prepared image."""
        return self.folder / f"{digest}.npz"

    def get(self, digest: str) -> ReadImage | None:
        """Return the prepared image with this digest; None if it is not cached."""
        kept = self._kept.get(digest)
        if kept is None:
            return None
        self._kept.move_to_end(digest)
        return self._give(kept)

    def add(self, image: ReadImage, space: RequestSpace) -> ReadImage:
        """Cache an image whose file was written into the space of a request.

        Returns the object that requests must hold.
        """
        if (old := self._kept.get(image.digest)) is not None:  # read twice, and the file is that of the second time
            self._leave_space(old)
            self.num_bytes -= old.image.num_bytes
        space.add(image.num_bytes)
        given = None if old is None else old.given()
        if given is None:
            given = self._given(image)
        self._kept[image.digest] = _Kept(image, weakref.ref(given), space)
        self._kept.move_to_end(image.digest)
        return given

    def close(self) -> None:
        """Remove the folder with all files."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for kept in self._kept.values():
            self._leave_space(kept)
        self._kept.clear()

    def _give(self, kept: _Kept) -> ReadImage:
        image = kept.given()
        if image is None:
            image = self._given(kept.image)
            kept.given = weakref.ref(image)
        return image

    def _given(self, image: ReadImage) -> ReadImage:
        """Return a copy of an image object for requests. When it is garbage-collected, the file counts as unused."""
        given = replace(image)
        weakref.finalize(given, self._image_ended, image.digest).atexit = False
        return given

    def _image_ended(self, digest: str) -> None:
        self._ended.append(digest)
        with contextlib.suppress(RuntimeError):  # the event loop has ended, and the folder was removed
            self._run_soon(self._tidy)

    def _tidy(self) -> None:
        """Return the request space of files that no request uses any more, and remove files beyond the cache
        limit.
        """
        while self._ended:
            kept = self._kept.get(self._ended.popleft())
            if kept is not None and kept.given() is None:
                self._leave_space(kept)
        for digest, kept in list(self._kept.items()):
            if self.num_bytes <= self._max_bytes:
                return
            if kept.space is None and kept.given() is None:
                del self._kept[digest]
                self.num_bytes -= kept.image.num_bytes
                kept.image.path.unlink(missing_ok=True)

    def _leave_space(self, kept: _Kept) -> None:
        """Move a file from its request's space to the cache's own bytes."""
        if kept.space is not None:
            space, kept.space = kept.space, None
            self.num_bytes += kept.image.num_bytes
            space.remove(kept.image.num_bytes)
