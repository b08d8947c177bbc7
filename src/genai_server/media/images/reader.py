"""Prepares the images and audio clips of chats as input of vision and audio models (`Images`): loads or fetches their
files, and has worker processes decode them, where a crash does no harm.
"""

import asyncio
import hashlib
import itertools
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from genai_server.config.settings import Settings
from genai_server.errors import AsIs, ImageReaderUnavailable, InvalidField
from genai_server.media.images.image_files import ImageFiles, PreparedImage, RequestSpace
from genai_server.media.images.image_header import MAX_KEPT_PIXELS, declared_size
from genai_server.media.images.sources import MAX_PARALLEL_FETCHES, SourceLimits, is_data_url, load_image
from genai_server.messages.supervisor_protocol import Task
from genai_server.model_files.speech_and_vision import Medium, VisionModel, longest_audio
from genai_server.system.addresses import is_public
from genai_server.system.processes import own_folder
from genai_server.workers.pool import remove
from genai_server.workers.process import ProcessDied, ProcessTimeout
from genai_server.workers.tasks import READ_AUDIO, READ_IMAGE, Answer, Requester, SharedCall, SharedCalls, Workers

log = logging.getLogger(__name__)

# Bytes that a prepared image is expected to take: for anything, and for each of its pixels. Qwen's models take 24 for a
# pixel. Gemma 3 makes 10 MB of each image.
_IMAGE_BYTES, _PIXEL_BYTES = 12 * 1024 * 1024, 24
# The same of an audio clip, for each second: ten milliseconds are 128 numbers of 32 bits.
_AUDIO_BYTES, _SECOND_BYTES = 1024 * 1024, 64_000
# The same of an image that has not been fetched yet.
_FETCHED_BYTES = 64 * 1024 * 1024
# The results of reading an image.
RESULTS = ("read", "refused", "crashed", "timed_out")
# Name of the folder in the engines' folder.
_FOLDER = "images"
_KINDS = {Medium.IMAGE: READ_IMAGE, Medium.AUDIO: READ_AUDIO}


# What an image is made from, whatever field it is in: the URL, and whether a small version is enough.
_Key = tuple[str, bool]


class ImageSource(NamedTuple):
    """Where an image or audio clip of a request comes from. The API's code creates it, and `Images.read` loads it.

    `url` is a data URL, or an http or https URL of an allowed host. `low_detail` says that a small version of the image
    is enough. `param` is the field of the request, such as `messages[0].content[1].image_url.url`.
    """

    # A data URL, or an http or https URL of an allowed host.
    url: str
    # Whether a small version of the image is enough.
    low_detail: bool
    # The field, such as `messages[0].content[1].image_url.url`.
    param: str

    @property
    def key(self) -> _Key:
        """What identifies the image within its request: two sources with equal keys give the same prepared image."""
        return self.url, self.low_detail


@dataclass(frozen=True)
class _LoadedImage:
    """An image or audio file that has been loaded but not prepared.

    `data` are its bytes, and `digest` identifies them with everything else that the result depends on, such as the
    model and the cache salt. `cost` is the number of pixels by the file's header, or the maximum seconds of an audio
    file of this size.
    """

    source: ImageSource
    data: bytes
    # SHA-256 in hex of the file and of what else the result depends on, with the salt.
    digest: str
    # Pixels by the file's header, or the maximum seconds that an audio file of this size has.
    cost: int


@dataclass(frozen=True)
class _Outcome:
    """The result of preparing an image: the prepared image, the reason why it cannot be used, or how much more space it
    needs.

    `result` is one of RESULTS, or "" if the image has to be prepared again with more disk space. `reason` says why it
    cannot be used, `image` is None unless it has been prepared, and `num_bytes` is the disk space that it needs if that
    is more than it was given, else 0.
    """

    # One of RESULTS; "" if it has not become anything yet.
    result: str
    # Why it cannot be used.
    reason: str = ""
    # None if it cannot be used.
    image: PreparedImage | None = None
    # How many bytes it takes, if these are more than it was given.
    num_bytes: int = 0


class _Call(NamedTuple):
    """An image of one request, `source`, and the work of preparing it, `shared`, which several requests may wait
    for.
    """

    source: ImageSource
    shared: SharedCall[_Outcome]


class Images:
    """Prepares the images and audio clips of all requests to this API process, in worker processes. For use in the
    event loop only. The app creates it and closes it.

    Prepared images are cached as files in a folder of this process below `folder`, and shared by requests with the same
    cache salt. A request reserves disk space for all of its images before any is prepared, so no request holds space
    while it waits for more.

    `workers` is the pool of worker processes. `count` is called with the result of each image that was not cached, one
    of RESULTS. `may_connect` gets an IP address and says whether images may be fetched from it.
    """

    def __init__(
        self,
        workers: Workers,
        settings: Settings,
        folder: Path,
        count: Callable[[str], None] = lambda result: None,
        *,
        may_connect: Callable[[str], bool] = is_public,
    ) -> None:
        self._workers = workers
        self._settings = settings
        self._limits = SourceLimits(settings.allowed_image_hosts, settings.max_media_bytes, settings.media_timeout)
        self._count = count
        self._may_connect = may_connect
        self._folder = folder
        self._files = ImageFiles(own_folder(folder, _FOLDER), settings.encoder_cache_bytes, self._run_soon)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._fetches = asyncio.Semaphore(MAX_PARALLEL_FETCHES)
        self._calls: SharedCalls[_Outcome] = SharedCalls()
        self._serials = itertools.count()

    async def read(
        self, model: VisionModel, sources: Sequence[ImageSource], requester: Requester
    ) -> list[PreparedImage]:
        """Load and prepare the images of a request for a model, and return them in the order of `sources`.

        Sources with the same URL and detail are prepared once. `requester` is the request, whose API key takes its turn
        in the queue of worker processes. Raises InvalidField, which names the source's field, if an image cannot be
        fetched or decoded or exceeds a limit, ImageReaderUnavailable if no worker process can be started or the disk is
        full, and QueueFull if too many images wait.
        """
        limit = self._settings.max_media
        if len(sources) > limit:
            raise InvalidField(
                sources[limit].param,
                "is one too many: a request may have at most",
                limit=f"{limit} {model.medium}s",
                limited_by="GENAI_MAX_MEDIA",
                given=len(sources),
            )
        if not sources:
            return []
        self._loop = asyncio.get_running_loop()
        self._files.create()
        distinct = list({source.key: source for source in reversed(sources)}.values())[::-1]
        sizes: dict[_Key, int] = {}
        prepared = await self._read(model, distinct, sizes, requester)
        while any(isinstance(image, int) for image in prepared.values()):  # they take more space than expected
            sizes |= {key: _num_bytes(image) for key, image in prepared.items()}
            del prepared  # what has been prepared may be removed for others, and is prepared again then
            self._check_bytes(model.medium, sizes, sources)
            prepared = await self._read(model, distinct, sizes, requester)
        images = [image for source in sources if isinstance(image := prepared[source.key], PreparedImage)]
        self._check_tokens(model.medium, images, sources)
        return images

    async def _read(
        self, model: VisionModel, sources: Sequence[ImageSource], sizes: Mapping[_Key, int], requester: Requester
    ) -> dict[_Key, PreparedImage | int]:
        """Try to prepare the images of a request, whose keys (`ImageSource.key`) all differ.

        Returns for each key the prepared image or, if the disk space reserved for the image did not suffice, the bytes
        that it needs. `sizes` has the sizes in bytes that an earlier attempt has found. Raises the errors of `read`.
        """
        inline_sources = [source for source in sources if is_data_url(source.url)]
        pixels = _PixelBudget(self._settings.max_request_pixels, model.medium)
        loaded = await asyncio.gather(*(self._load(model, source, pixels, requester) for source in inline_sources))
        parts = self._parts(model.medium, sources, loaded, sizes)
        calls: list[_Call] = []
        fetching: dict[_Key, asyncio.Task[PreparedImage | int]] = {}
        space = await self._take(sum(parts.values()), requester)
        try:
            fetching |= {
                source.key: asyncio.create_task(self._fetch(model, source, pixels, requester, parts, space))
                for source in sources
                if not is_data_url(source.url)
            }
            calls = self._begin(model, loaded, pixels, requester, parts, space)
            read_images = await asyncio.gather(*(self._image(call, model.medium) for call in calls))
            await asyncio.gather(*fetching.values())
        finally:
            for call in calls:
                call.shared.leave()
            for task in fetching.values():
                task.cancel()
            if space is not None:
                space.close()
        prepared = {source.key: image for source, image in zip(inline_sources, read_images, strict=True)}
        return prepared | {key: task.result() for key, task in fetching.items()}

    def _parts(
        self, medium: Medium, sources: Sequence[ImageSource], loaded: Sequence[_LoadedImage], sizes: Mapping[_Key, int]
    ) -> dict[_Key, int]:
        """Return how many bytes of disk space to reserve for each image, by its key: its known size or an estimate.

        `loaded` are the images whose files have been loaded already, and `sizes` has the sizes in bytes that an earlier
        attempt has found. Estimates are scaled down if the total would exceed the limit of a request.
        """
        expected = {source.key: _FETCHED_BYTES for source in sources}
        expected |= {image.source.key: _expected_bytes(medium, image.cost) for image in loaded}
        if not sizes:  # otherwise an image may be removed until its turn comes, each time
            for image in loaded:
                if image.digest in self._files or image.digest in self._calls:
                    expected[image.source.key] = 0
        known_sizes = {key: num_bytes for key, num_bytes in sizes.items() if key in expected}
        unknown = {key: num_bytes for key, num_bytes in expected.items() if key not in known_sizes}
        available = max(0, self._settings.prepared_bytes_per_request - sum(known_sizes.values()))
        if (total := sum(unknown.values())) > available:
            unknown = {key: num_bytes * available // total for key, num_bytes in unknown.items()}
        return known_sizes | unknown

    async def _take(self, num_bytes: int, requester: Requester) -> RequestSpace | None:
        """Reserve `num_bytes` bytes of disk space for the images of a request, and wait until they are available.

        Returns None if `num_bytes` is 0. Raises ImageReaderUnavailable if the space cannot be reserved.
        """
        if not num_bytes:
            return None
        return RequestSpace(await self._workers.reserve_space(requester.owner, num_bytes, ImageReaderUnavailable))

    async def start(self, model: VisionModel) -> None:
        """Start a worker process for a model in advance, so that the first image need not wait. A failure is only
        logged.

        No process is started if a process of another model would have to end for it.
        """
        try:
            await self._workers.start_process(_KINDS[model.medium], self._spec(model))
        except ImageReaderUnavailable as error:
            log.warning("no process for the images of %s: %s", model.directory, error)

    def close(self) -> None:
        """Remove the folder with all prepared images, when the app ends."""
        self._files.close()

    async def _load(
        self, model: VisionModel, source: ImageSource, pixels: "_PixelBudget", requester: Requester
    ) -> _LoadedImage:
        """Load the file of an image from its URL, compute its digest, and count its cost toward the request's budget
        `pixels`.

        Raises InvalidField, which names the source's field, if the file cannot be loaded or exceeds a limit.
        """
        data = await load_image(source.url, self._limits, param=source.param, may_connect=self._may_connect)
        settings, identity = self._settings, [str(model.directory), model.kind, source.low_detail, requester.cache_salt]
        digest = await asyncio.to_thread(_digest, data, identity)
        if model.medium is Medium.AUDIO:
            cost = longest_audio(len(data), settings.max_audio_seconds)
        else:
            width, height = declared_size(data) or (1, 1)
            if width * height > settings.max_image_pixels:
                self._count("refused")
                raise InvalidField(
                    source.param,
                    "cannot be used: the image may have at most",
                    limit=f"{settings.max_image_pixels} pixels",
                    limited_by="GENAI_MAX_IMAGE_PIXELS",
                    given=AsIs(f"{width}x{height}"),
                )
            cost = width * height
        pixels.add(cost, source.param)
        return _LoadedImage(source, data, digest, cost)

    async def _fetch(
        self,
        model: VisionModel,
        source: ImageSource,
        pixels: "_PixelBudget",
        requester: Requester,
        parts: Mapping[_Key, int],
        space: RequestSpace | None,
    ) -> PreparedImage | int:
        """Fetch an image from an http or https URL and prepare it.

        `pixels` is the request's budget of pixels, `space` the disk space that it has reserved, and `parts` has each
        image's part of it in bytes. Returns the prepared image or, if its part did not suffice, the bytes that it
        needs. Raises the errors of `read`.
        """
        async with self._fetches:
            loaded = await self._load(model, source, pixels, requester)
            (call,) = self._begin(model, [loaded], pixels, requester, parts, space)
            try:
                return await self._image(call, model.medium)
            finally:
                call.shared.leave()

    def _begin(
        self,
        model: VisionModel,
        images: Sequence[_LoadedImage],
        pixels: "_PixelBudget",
        requester: Requester,
        parts: Mapping[_Key, int],
        space: RequestSpace | None,
    ) -> list[_Call]:
        """Begin to prepare loaded images: all of them, or none if the queue of the worker processes is full
        (QueueFull).

        Images that are cached or already being prepared are not prepared again. `pixels` is the request's budget of
        pixels, `space` the disk space that it has reserved, and `parts` has each image's part of it in bytes. Returns
        one call for each image, in order; `_image` waits for its result.
        """
        cached = {image.digest: self._files.get(image.digest) for image in images}
        new = {
            image.digest: image for image in images if cached[image.digest] is None and image.digest not in self._calls
        }
        tasks = {
            digest: self._task(model, image, requester, image.cost, parts[image.source.key])
            for digest, image in new.items()
        }
        # Without space nothing is new: what is kept, or being prepared, has not changed since the space was counted.
        answers = {} if space is None else dict(zip(tasks, space.space.submit(list(tasks.values())), strict=True))

        async def prepare(image: _LoadedImage) -> _Outcome:
            if (hit := cached[image.digest]) is not None:
                return _Outcome("read", image=hit)
            digest = image.digest
            assert space is not None
            return await self._prepare(model, image, pixels, requester, tasks[digest], answers[digest], space)

        calls = [_Call(image.source, self._calls.join(image.digest, partial(prepare, image))) for image in images]
        for call, image in zip(calls, images, strict=True):
            if space is not None and image.digest in answers:
                space.begin()
                call.shared.add_done_callback(partial(_drop, tasks[image.digest], answers[image.digest], space))
        return calls

    def _task(self, model: VisionModel, image: _LoadedImage, requester: Requester, cost: int, max_bytes: int) -> Task:
        target = self._files.folder / f"{image.digest}.{next(self._serials)}"
        question = {
            "path": str(target),
            "low_detail": image.source.low_detail,
            "max_cost": cost,
            "max_bytes": max_bytes,
        }
        return Task(
            _KINDS[model.medium].name,
            requester.owner,
            self._spec(model),
            question,
            image.data,
            timeout=self._settings.media_timeout,
            cost=cost,
            target=str(target),
        )

    async def _prepare(
        self,
        model: VisionModel,
        image: _LoadedImage,
        pixels: "_PixelBudget",
        requester: Requester,
        task: Task,
        answer: "asyncio.Future[Answer]",
        space: RequestSpace,
    ) -> _Outcome:
        """Wait until a worker process has prepared an image, and return the result.

        `task` is the work, and `answer` the worker's answer to it. If the image has more pixels than its file's header
        declares, the task is queued once more with the actual cost, which is counted toward the budget `pixels`.
        `space` is the disk space that the request has reserved. Raises ImageReaderUnavailable and InvalidField.
        """
        timeout = self._settings.media_timeout
        try:
            result = await answer
            if (cost := result.get("cost")) is not None:
                pixels.add(cost - image.cost, image.source.param)
                task = self._task(model, image, requester, cost, task.question["max_bytes"])
                (answer,) = space.space.submit([task])
                result = await answer
        except ProcessTimeout:
            outcome = _Outcome("timed_out", f"takes longer than {timeout} s to prepare (GENAI_MEDIA_TIMEOUT)")
        except ProcessDied:
            purpose = _KINDS[model.medium].purpose
            outcome = _Outcome("crashed", f"crashes the process that {purpose}, or exceeds its memory limit")
        else:
            outcome = self._outcome(image, Path(task.target), result, space)
        if outcome.result:
            self._count(outcome.result)
        return outcome

    def _outcome(self, image: _LoadedImage, written: Path, answer: Answer, space: RequestSpace) -> _Outcome:
        if (reason := answer.get("refused")) is not None:
            return _Outcome("refused", str(reason))
        if (num_bytes := answer.get("bytes")) is not None:
            return _Outcome("", num_bytes=int(num_bytes))
        if (reason := answer.get("unavailable")) is not None:
            raise ImageReaderUnavailable(f"a prepared image cannot be written: {reason}")
        path = self._files.path(image.digest)
        written.replace(path)  # at once: an engine may be reading it
        grid = None if answer["grid"] is None else tuple(answer["grid"])
        read_image = PreparedImage(image.digest, answer["expansion"], grid, path, path.stat().st_size)
        return _Outcome("read", image=self._files.add(read_image, space))

    async def _image(self, call: _Call, medium: Medium) -> PreparedImage | int:
        """Wait for an image that is being prepared, and return it or, if its disk space did not suffice, the bytes that
        it needs.

        Raises InvalidField, which names the image's field, if the image cannot be used.
        """
        outcome, param = await call.shared.result(), call.source.param
        if outcome.num_bytes:
            return outcome.num_bytes
        if outcome.image is None:
            raise InvalidField(param, f"cannot be used: the {medium} {outcome.reason}")
        return outcome.image

    def _spec(self, model: VisionModel) -> dict[str, Any]:
        """Return the specification with which a worker process for a model is started: the model's folder, and
        limits.
        """
        settings = self._settings
        return {
            "model_dir": str(model.directory),
            "medium": model.medium,
            "folder": str(self._folder),
            "max_pixels": settings.max_image_pixels,
            "max_tokens": settings.max_media_tokens,
            "max_seconds": settings.max_audio_seconds,
        }

    def _run_soon(self, work: Callable[[], None]) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(work)

    def _check_bytes(self, medium: Medium, sizes: Mapping[_Key, int], sources: Sequence[ImageSource]) -> None:
        limit, num_bytes = self._settings.prepared_bytes_per_request, sum(sizes.values())
        if num_bytes > limit:
            raise InvalidField(
                sources[-1].param,
                f"is too large: when the {medium}s of a request are prepared, they may take at most",
                limit=f"{limit} bytes of disk space",
                limited_by="a quarter of GENAI_MAX_PREPARED_BYTES",
                given=num_bytes,
            )

    def _check_tokens(self, medium: Medium, images: Sequence[PreparedImage], sources: Sequence[ImageSource]) -> None:
        limit, num_tokens = self._settings.max_media_tokens, sum(len(image.expansion) for image in images)
        if num_tokens > limit:
            raise InvalidField(
                sources[-1].param,
                f"is too large: the {medium}s of a request may have at most",
                limit=f"{limit} tokens together",
                limited_by="GENAI_MAX_MEDIA_TOKENS",
                given=num_tokens,
            )


class _PixelBudget:
    """Counts the pixels of one request's images and enforces the limit of their total. Audio clips are not limited."""

    def __init__(self, limit: int, medium: Medium) -> None:
        self._limit = limit
        self._is_limited = medium is Medium.IMAGE
        self._total = 0

    def add(self, pixels: int, param: str) -> None:
        """Count the pixels of one more image. Raises InvalidField, which names the field `param`, if the total is too
        large.
        """
        self._total += pixels
        if self._is_limited and self._total > self._limit:
            raise InvalidField(
                param,
                "is too large: the images of a request may have at most",
                limit=f"{self._limit} pixels together",
                limited_by="GENAI_MAX_REQUEST_PIXELS",
                given=self._total,
            )


def _expected_bytes(medium: Medium, cost: int) -> int:
    """Return an estimate of the size in bytes of a prepared image or audio clip.

    `cost` is the number of pixels of an image, or of seconds of a clip.
    """
    if medium is Medium.AUDIO:
        return _AUDIO_BYTES + _SECOND_BYTES * cost
    return _IMAGE_BYTES + _PIXEL_BYTES * min(cost, MAX_KEPT_PIXELS)


def _num_bytes(image: PreparedImage | int) -> int:
    """Return the size in bytes of a prepared image, given as the image or, if it has not been prepared, as the size
    itself.
    """
    return image if isinstance(image, int) else image.num_bytes


def _drop(task: Task, answer: "asyncio.Future[Answer]", space: RequestSpace, _: object) -> None:
    """Clean up after a task whose answer nobody waits for any more: cancel it and remove the file that it was to write.

    Also records in `space` that its image is not being prepared any more. Once an image has been prepared, its file has
    another name and is kept.
    """
    answer.cancel()
    remove(task.target)
    space.end()


def _digest(data: bytes, identity: Sequence[Any]) -> str:
    digest = hashlib.sha256(json.dumps(identity).encode() + b"\n")
    digest.update(data)
    return digest.hexdigest()
