"""Encodes the images of requests in a thread of its own, and keeps the features of recent images.

Running answers continue during this time. What the thread has done for a request comes back to the loop as a message.
"""

import logging
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genai_server.engine.host.priority import let_others_go_first
from genai_server.engine.prompt_images import EncodedImage, PromptImages
from genai_server.engine.sequence import Sequence, SequenceState
from genai_server.errors import GenaiServerError, RunnerFailed
from genai_server.messages.generation_request import Image

log = logging.getLogger(__name__)
# Computes the features [features, hidden_size] of one image's tensors, which have the library's names.
Encode = Callable[[Mapping[str, NDArray[Any]]], NDArray[Any]]
# The images of a request, or why they cannot be had.
Encoded = PromptImages | GenaiServerError
# Images whose ids are remembered, so that cached prefixes with them are found after their features were dropped.
_MAX_SERIALS = 100_000


class ImageWorker:
    """The thread owns the features. `max_bytes` limits those that are kept besides the ones of present requests.

    `open_encoder` is called in the thread, whose priority its own threads inherit: passes of running answers go first.
    Raises what it raises.
    """

    def __init__(self, open_encoder: Callable[[], Encode], image_token: int, max_bytes: int) -> None:
        # The token that the model has for all features of images.
        self.image_token = image_token
        # Images encoded up to now, without those whose features were kept.
        self.num_encoded = 0
        self._max_bytes = max_bytes
        self._kept: OrderedDict[str, EncodedImage] = OrderedDict()
        self._num_bytes = 0
        self._serials: OrderedDict[str, int] = OrderedDict()
        self._numbers = count()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="images", initializer=let_others_go_first)
        self._encode = self._thread.submit(open_encoder).result()

    def submit(self, sequence: Sequence, done: Callable[[Encoded], None]) -> None:
        """Encode a sequence's images; `done` is called in the thread. A sequence that ends before is left out."""
        self._thread.submit(self._prepare, sequence, done)

    def _prepare(self, sequence: Sequence, done: Callable[[Encoded], None]) -> None:
        request = sequence.request
        encoded: list[EncodedImage] = []
        try:
            for image in request.images:
                if sequence.state is SequenceState.ENDED:
                    return
                encoded.append(self._encoded(image))
            done(PromptImages(request.prompt, request.images, encoded, self.image_token))
        except GenaiServerError as error:
            done(error)
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            done(RunnerFailed(f"an image cannot be read: {error}"))
        except Exception:  # the request would wait for ever
            log.exception("the images of request %s met an internal error", request.request_id)
            done(RunnerFailed("internal error; see the server log"))

    def _encoded(self, image: Image) -> EncodedImage:
        found = self._kept.get(image.digest)
        if found is None:
            with open(image.path, "rb") as file, np.load(file, allow_pickle=False) as tensors:
                features = self._encode(dict(tensors))
            self.num_encoded += 1
            found = EncodedImage(self._serial(image.digest), features)
            self._kept[image.digest] = found
            self._num_bytes += features.nbytes
            while self._num_bytes > self._max_bytes:
                _, dropped = self._kept.popitem(last=False)
                self._num_bytes -= dropped.features.nbytes
        else:
            self._kept.move_to_end(image.digest)
        return found

    def _serial(self, digest: str) -> int:
        """The number of an image, which no other image has had."""
        serial = self._serials.pop(digest, None)
        self._serials[digest] = serial = next(self._numbers) if serial is None else serial
        if len(self._serials) > _MAX_SERIALS:
            self._serials.popitem(last=False)
        return serial
