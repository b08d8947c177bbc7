"""Reads the images of requests for vision models, in separate processes, which an image can crash without harm."""

import asyncio
import contextlib
import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from genai_server.config.environment import untrusted_work_environment
from genai_server.config.settings import Settings
from genai_server.errors import ImageReaderUnavailable, InvalidField
from genai_server.images.image_files import ImageFiles, ReadImage
from genai_server.images.sources import SourceLimits, is_data_url, is_public, load_image
from genai_server.process_folder import own_folder
from genai_server.process_pool import Outcome, ProcessDied, ProcessPool, ProcessTimeout, Readers, WorkerProcess
from genai_server.vision_model import Medium, VisionModel

log = logging.getLogger(__name__)

# Maximum number of images that are fetched, or fetched and not prepared yet, at a time: they take memory that no limit
# of bodies counts.
_FETCHES = 8
# The results of reading an image.
RESULTS = ("read", "refused", "crashed", "timed_out")
_CRASHES = "crashes the process that reads images, or exceeds its memory limit"
# Name of the folder in the engines' folder.
_FOLDER = "images"


class ImageSource(NamedTuple):
    """An image of a request, or a sound."""

    # A data URL, or an http or https URL of an allowed host.
    url: str
    # Whether a small version of the image is enough.
    low_detail: bool
    # The field, such as `messages[0].content[1].image_url.url`.
    param: str


class ImageProcess(WorkerProcess):
    """A process that reads images for the model of a directory. Raises ImageReaderUnavailable if it cannot start."""

    module, purpose = "genai_server.images.process", "reads images"
    unavailable = ImageReaderUnavailable

    def __init__(self, spec: Mapping[str, Any]) -> None:
        super().__init__(untrusted_work_environment(), spec)

    def read(self, data: bytes, path: Path, timeout: float, *, low_detail: bool) -> dict[str, Any]:
        """Prepare an image and write it to `path`. Returns `expansion` and `grid`, or why it is `refused`.

        Raises ProcessDied and ProcessTimeout, after which the process is gone.
        """
        partial_file = path.with_suffix(f".{self.pid}")
        question = {"path": str(partial_file), "low_detail": low_detail}
        try:
            found = self.ask(question, data, timeout)
            if "refused" not in found:
                partial_file.replace(path)  # at once: an engine may be reading it
        finally:
            partial_file.unlink(missing_ok=True)
        return found


class ImageReader:
    """Reads images for one model. Belongs to the event loop; its pool must be closed.

    `count` is called with the result of each image that is not prepared yet, one of RESULTS.
    """

    def __init__(
        self,
        model: VisionModel,
        settings: Settings,
        files: ImageFiles,
        count: Callable[[str], None] = lambda result: None,
        start: Callable[[Mapping[str, Any]], ImageProcess] = ImageProcess,
    ) -> None:
        self._model = model
        self._timeout = settings.media_timeout
        self._files = files
        self._count = count
        spec = {
            "model_dir": str(model.directory),
            "medium": model.medium,
            "folder": str(files.folder),
            "max_pixels": settings.max_image_pixels,
            "max_tokens": settings.max_media_tokens,
            "max_seconds": settings.max_audio_seconds,
        }
        self.pool: ProcessPool[ImageProcess, Outcome[ReadImage]] = ProcessPool(ImageProcess, partial(start, spec))

    async def read(self, data: bytes, *, low_detail: bool, param: str) -> ReadImage:
        """Prepare an image file for the model. Equal images are read once, and kept for some time.

        Raises InvalidField, which names `param`, and ImageReaderUnavailable.
        """
        digest = await asyncio.to_thread(self._digest, data, low_detail=low_detail)
        if (kept := self._files.get(digest)) is not None:
            return kept
        work = partial(self._read, digest, data, low_detail=low_detail)
        found = await self.pool.call(digest.encode(), work, lambda found: self._count(found.result))
        if found.value is None:
            raise InvalidField(f"{param}: the {self._model.medium} {found.reason}", param=param)
        return found.value

    def _digest(self, data: bytes, *, low_detail: bool) -> str:
        digest = hashlib.sha256(json.dumps([str(self._model.directory), self._model.kind, low_detail]).encode() + b"\n")
        digest.update(data)
        return digest.hexdigest()

    def _read(self, digest: str, data: bytes, *, low_detail: bool) -> Outcome[ReadImage]:
        """Prepare an image, in one of the threads."""
        path = self._files.path(digest)
        try:
            found = self.pool.with_process(
                lambda process: process.read(data, path, self._timeout, low_detail=low_detail)
            )
        except ProcessTimeout:
            return Outcome("timed_out", f"takes longer than {self._timeout} s to prepare (GENAI_MEDIA_TIMEOUT)")
        except ProcessDied:
            return Outcome("crashed", _CRASHES)
        if reason := found.get("refused"):
            return Outcome("refused", reason)
        grid = None if found["grid"] is None else tuple(found["grid"])
        return Outcome("read", value=self._files.add(ReadImage(digest, found["expansion"], grid, path)))


class Images:
    """Reads the images of all requests. Belongs to the event loop; must be closed.

    Prepared images are files in a folder of this process below `folder`. `may_connect` decides by an address whether
    images may be fetched from it.
    """

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        count: Callable[[str], None] = lambda result: None,
        *,
        may_connect: Callable[[str], bool] = is_public,
        start: Callable[[Mapping[str, Any]], ImageProcess] = ImageProcess,
    ) -> None:
        self._settings = settings
        self._limits = SourceLimits(settings.allowed_image_hosts, settings.max_media_bytes, settings.media_timeout)
        self._count = count
        self._may_connect = may_connect
        self._start = start
        self._files = ImageFiles(own_folder(folder, _FOLDER), settings.encoder_cache_bytes)
        self._fetches = asyncio.Semaphore(_FETCHES)
        self._readers: Readers[ImageReader] = Readers()

    async def read(self, model: VisionModel, sources: Sequence[ImageSource]) -> list[ReadImage]:
        """Read the images of a request, in their order. Equal sources are read once.

        Raises InvalidField, which names the source's field, if an image cannot be fetched or decoded, or is over a
        limit, and ImageReaderUnavailable if no process can be started.
        """
        limit = self._settings.max_media
        if len(sources) > limit:
            raise InvalidField(
                f"a request may have at most {limit} {model.medium}s (GENAI_MAX_MEDIA), given {len(sources)}",
                param=sources[limit].param,
            )
        if not sources:
            return []
        reader = self._reader(model)
        tasks: dict[tuple[str, bool], asyncio.Task[ReadImage]] = {}
        for source in sources:
            key = (source.url, source.low_detail)
            if key not in tasks:
                tasks[key] = asyncio.create_task(self._read(reader, source))
        try:
            await asyncio.gather(*tasks.values())
        finally:
            for task in tasks.values():
                task.cancel()
        images = [tasks[source.url, source.low_detail].result() for source in sources]
        self._check_tokens(model.medium, images, sources)
        return images

    async def start(self, model: VisionModel) -> None:
        """Start a process for a model, so that its first image need not wait for it. A failure is only logged.

        No process is started if those of another model would have to end.
        """
        if not self._readers.has_room_for(model.directory):
            return
        try:
            await self._reader(model).pool.start()
        except ImageReaderUnavailable as error:
            log.warning("no process for the images of %s: %s", model.directory, error)

    def close(self) -> None:
        """End the processes and remove the files."""
        self._readers.close()
        self._files.close()

    async def _read(self, reader: ImageReader, source: ImageSource) -> ReadImage:
        async with contextlib.nullcontext() if is_data_url(source.url) else self._fetches:
            data = await load_image(source.url, self._limits, param=source.param, may_connect=self._may_connect)
            return await reader.read(data, low_detail=source.low_detail, param=source.param)

    def _check_tokens(self, medium: Medium, images: Sequence[ReadImage], sources: Sequence[ImageSource]) -> None:
        limit, num_tokens = self._settings.max_media_tokens, sum(len(image.expansion) for image in images)
        if num_tokens > limit:
            raise InvalidField(
                f"the {medium}s of a request may have at most {limit} tokens together (GENAI_MAX_MEDIA_TOKENS), "
                f"given {num_tokens}",
                param=sources[-1].param,
            )

    def _reader(self, model: VisionModel) -> ImageReader:
        def make() -> ImageReader:
            self._files.create()
            return ImageReader(model, self._settings, self._files, self._count, self._start)

        return self._readers.get(model.directory, make)
