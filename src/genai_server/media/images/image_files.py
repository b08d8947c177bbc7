"""Cache of prepared images (`ImageFiles`), which are files that engines read, and the disk space that requests reserve
for them (`RequestSpace`).

A prepared image has the tensors that a vision model takes as input. Prepared audio clips of chats are treated alike.
"""

import contextlib
import shutil
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from genai_server.workers.tasks import Space


@dataclass(frozen=True, eq=False)
class PreparedImage:
    """An image, or audio clip, prepared as input of a model. The file `path` with its tensors exists at least as long
    as this object.

    `digest` identifies what the image was made from: bytes, detail and model. `expansion` are the tokens that replace
    the placeholder in the prompt, `grid` is the number of frames, rows and columns in tokens (None for models without
    positions in three dimensions), and `num_bytes` the size of the file.
    """

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
    """The disk space `space` that one request has reserved for its prepared images, and how much of it is in use. For
    use in the event loop only. The request must close it.

    A file occupies a part of the space until no request uses the file any more. The space that no file occupies is
    given back when the request has closed the object and none of its images is being prepared.
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        self._num_preparing = 0
        self._num_bytes = 0
        self._is_closed = False

    def begin(self) -> None:
        """Record that one more image of the request is being prepared. `end` must follow."""
        self._num_preparing += 1

    def end(self) -> None:
        """Record that one image fewer is being prepared, whether or not it could be.

        If it was the last one and the request has closed the space, the unused space is given back.
        """
        self._num_preparing -= 1
        self._release_unused()

    def add(self, num_bytes: int) -> None:
        """Record that a new file of `num_bytes` bytes occupies a part of the reserved space."""
        self._num_bytes += num_bytes

    def remove(self, num_bytes: int) -> None:
        """Record that a file of `num_bytes` bytes no longer occupies a part of the space, which is given back if it is
        closed.
        """
        self._num_bytes -= num_bytes
        self._release_unused()

    def close(self) -> None:
        """Record that the request will prepare no more images. The unused space is given back as soon as none is being
        prepared.
        """
        self._is_closed = True
        self._release_unused()

    def _release_unused(self) -> None:
        if self._is_closed and not self._num_preparing:
            self.space.shrink(self._num_bytes)


@dataclass
class _CachedFile:
    """A file in the cache of prepared images.

    `image` describes it. `reference` refers weakly to the copy of `image` that requests hold while they use the file.
    `space` is the disk space of the request that prepared it; None once it has been used by no request.
    """

    # Describes the file; this object is never handed out.
    image: PreparedImage
    # The copy that was handed out to requests, if it is still in use.
    reference: "weakref.ref[PreparedImage]"
    # The space of the request that has prepared it; None once it has been used by no request.
    space: RequestSpace | None


class ImageFiles:
    """Cache of prepared images: files in a folder that only this user can enter, keyed by digest. For use in the event
    loop only. Images creates it and must close it.

    A file first occupies disk space of the request that prepared it. When no request uses the file any more, it counts
    toward `max_bytes`, the limit for files that are cached for later requests. Beyond the limit, the least recently
    used files are removed, but none that is in use.

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
        self._files: OrderedDict[str, _CachedFile] = OrderedDict()
        # Digests of images that have ended.
        self._ended: deque[str] = deque()
        # Bytes of the files that no request has space for.
        self.num_bytes = 0

    def __contains__(self, digest: str) -> bool:
        """Whether the prepared image with this digest is cached."""
        return digest in self._files

    def create(self) -> None:
        """Create the cache's folder if it does not exist."""
        self.folder.mkdir(mode=0o700, exist_ok=True)

    def path(self, digest: str) -> Path:
        """Return the path of the file for the prepared image with this digest, whether or not it exists."""
        return self.folder / f"{digest}.npz"

    def get(self, digest: str) -> PreparedImage | None:
        """Return the prepared image with this digest, and mark it as used last; None if it is not cached."""
        file = self._files.get(digest)
        if file is None:
            return None
        self._files.move_to_end(digest)
        return self._handle(file)

    def add(self, image: PreparedImage, space: RequestSpace) -> PreparedImage:
        """Add to the cache a prepared image whose file was written into the disk space of a request.

        Returns the object that requests must keep as long as they use the file.
        """
        if (old := self._files.get(image.digest)) is not None:  # read twice, and the file is that of the second time
            self._leave_space(old)
            self.num_bytes -= old.image.num_bytes
        space.add(image.num_bytes)
        handle = None if old is None else old.reference()
        if handle is None:
            handle = self._new_handle(image)
        self._files[image.digest] = _CachedFile(image, weakref.ref(handle), space)
        self._files.move_to_end(image.digest)
        return handle

    def close(self) -> None:
        """Remove the folder with all files of the cache."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for file in self._files.values():
            self._leave_space(file)
        self._files.clear()

    def _handle(self, file: _CachedFile) -> PreparedImage:
        image = file.reference()
        if image is None:
            image = self._new_handle(file.image)
            file.reference = weakref.ref(image)
        return image

    def _new_handle(self, image: PreparedImage) -> PreparedImage:
        """Return a copy of `image` for requests. When the copy is garbage-collected, the file counts as unused."""
        handle = replace(image)
        weakref.finalize(handle, self._image_ended, image.digest).atexit = False
        return handle

    def _image_ended(self, digest: str) -> None:
        self._ended.append(digest)
        with contextlib.suppress(RuntimeError):  # the event loop has ended, and the folder was removed
            self._run_soon(self._evict_unused)

    def _evict_unused(self) -> None:
        """Count the files that no request uses any more toward the cache's limit, and remove the least recently used
        beyond it.
        """
        while self._ended:
            file = self._files.get(self._ended.popleft())
            if file is not None and file.reference() is None:
                self._leave_space(file)
        for digest, file in list(self._files.items()):
            if self.num_bytes <= self._max_bytes:
                return
            if file.space is None and file.reference() is None:
                del self._files[digest]
                self.num_bytes -= file.image.num_bytes
                file.image.path.unlink(missing_ok=True)

    def _leave_space(self, file: _CachedFile) -> None:
        """Count a file that no request uses any more toward the cache's limit, instead of the space of the request that
        prepared it.
        """
        if file.space is not None:
            space, file.space = file.space, None
            self.num_bytes += file.image.num_bytes
            space.remove(file.image.num_bytes)
