"""Prepared images as files, which an engine reads, and the disk space that they take."""

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
    """An image that is ready for a vision model. Its file exists as long as the object is alive."""

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
    """The disk space that a request has taken for its images. Belongs to the event loop; must be closed.

    Each file has its part of it until no request uses it any more. What is left is returned once the request is closed
    and none of its images is being prepared any more.
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        self._num_preparing = 0
        self._num_bytes = 0
        self._is_closed = False

    def begin(self) -> None:
        """Note that an image is being prepared."""
        self._num_preparing += 1

    def end(self) -> None:
        """Note that an image is no longer being prepared."""
        self._num_preparing -= 1
        self._return_rest()

    def add(self, num_bytes: int) -> None:
        """Give a file its part."""
        self._num_bytes += num_bytes

    def remove(self, num_bytes: int) -> None:
        """Take the part of a file back."""
        self._num_bytes -= num_bytes
        self._return_rest()

    def close(self) -> None:
        """Note that the request begins to prepare no more images."""
        self._is_closed = True
        self._return_rest()

    def _return_rest(self) -> None:
        if self._is_closed and not self._num_preparing:
            self.space.shrink(self._num_bytes)


@dataclass
class _Kept:
    """A file that is kept."""

    # Describes it; this object is given to no one.
    image: ReadImage
    # What was given to others, if it is still in use.
    given: "weakref.ref[ReadImage]"
    # The space of the request that has prepared it; None once it has been used by no request.
    space: RequestSpace | None


class ImageFiles:
    """Files in a folder that only this user can enter. Belongs to the event loop; must be closed.

    A file has its part of the space of the request that has prepared it until no request uses it. From then on it is
    one of those that are kept for later requests, which have at most `max_bytes` together; the least recently used are
    removed, and none that is in use.

    `run_soon` runs a function in the event loop; any thread may call it, because an image may end in any.
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
        """Whether the file of an image is kept."""
        return digest in self._kept

    def create(self) -> None:
        """Create the folder, if it does not exist yet."""
        self.folder.mkdir(mode=0o700, exist_ok=True)

    def path(self, digest: str) -> Path:
        """Where the file of an image belongs."""
        return self.folder / f"{digest}.npz"

    def get(self, digest: str) -> ReadImage | None:
        """The image, if its file is kept."""
        kept = self._kept.get(digest)
        if kept is None:
            return None
        self._kept.move_to_end(digest)
        return self._give(kept)

    def add(self, image: ReadImage, space: RequestSpace) -> ReadImage:
        """Keep an image whose file has been written into the space of a request; returns the object to use."""
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
        """Remove all files with their folder."""
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
        """An image for requests. Once none uses it, its file is one of those that are kept for later ones."""
        given = replace(image)
        weakref.finalize(given, self._image_ended, image.digest).atexit = False
        return given

    def _image_ended(self, digest: str) -> None:
        self._ended.append(digest)
        with contextlib.suppress(RuntimeError):  # the event loop has ended, and the folder was removed
            self._run_soon(self._tidy)

    def _tidy(self) -> None:
        """Return the space of files that no request uses any more, and remove those beyond the limit."""
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
        """Count a file to those that no request has space for."""
        if kept.space is not None:
            space, kept.space = kept.space, None
            self.num_bytes += kept.image.num_bytes
            space.remove(kept.image.num_bytes)
