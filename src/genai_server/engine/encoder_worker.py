"""Encodes the images or audio of requests in a separate thread, and caches what was encoded recently.

Other sequences continue to generate meanwhile. The result for a request reaches the engine's loop as a message.
"""

import logging
import zipfile
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from genai_server.engine.encoded_audio import EncodedAudio
from genai_server.engine.host.priority import let_others_go_first
from genai_server.engine.prompt_images import EncodedImage, PromptImages
from genai_server.engine.sequence import Sequence, SequenceState
from genai_server.engine.worker_thread import WorkerThread
from genai_server.errors import GenaiServerError, RunnerFailed
from genai_server.messages.generation_request import GenerationRequest

log = logging.getLogger(__name__)
# The tensors of an input, by the library's names.
Tensors = Mapping[str, NDArray[Any]]
# What all inputs of a request become, or why they cannot be had.
Encoded = PromptImages | EncodedAudio | GenaiServerError


One = TypeVar("One", EncodedImage, EncodedAudio)


class RequestEnded(Exception):
    """The request whose input was to be encoded has ended."""


class EncoderWorker(ABC, Generic[One]):
    """Base of the workers that encode images or audio in a thread of their own.

    Encoded inputs of unfinished requests always stay in the cache, so that none is encoded twice. All others together
    take up to `max_bytes`. `open_encoder` is called in the worker's thread, whose low priority is inherited by the
    encoder's own threads, so that decoding comes first. The constructor raises what `open_encoder` raises.
    """

    # One of them, with its article.
    noun: str

    def __init__(self, open_encoder: Callable[[], Callable[..., Any]], max_bytes: int) -> None:
        # Inputs encoded up to now, without those that were kept.
        self.num_encoded = 0
        self._max_bytes = max_bytes
        self._kept: OrderedDict[str, One] = OrderedDict()
        # The present requests that have been given their inputs, with the digests of these.
        self._given: list[tuple[Sequence, str]] = []
        self._thread = WorkerThread("encoder", let_others_go_first)
        self._encode = self._thread.submit(open_encoder).result()

    def submit(self, sequence: Sequence, done: Callable[[Encoded], None]) -> None:
        """Encode the inputs of a sequence. `done` is called with the result in the worker's thread.

        `done` is not called if the sequence ends before.
        """
        job = partial(self._prepare, sequence, done)
        self._thread.submit(job, tenant=sequence.tenant, low_priority=sequence.low_priority)

    @abstractmethod
    def check(self, request: GenerationRequest) -> None:
        """Raise InvalidField if the model cannot read the images or audio of a request."""

    @abstractmethod
    def has_inputs(self, request: GenerationRequest) -> bool:
        """Whether a request has images or audio to encode."""

    @abstractmethod
    def _encode_all(self, sequence: Sequence) -> PromptImages | EncodedAudio:
        """Encode all inputs of a sequence's request. Implementations call `_encoded` for each input."""

    @abstractmethod
    def _made(self, digest: str, tensors: Tensors, request: GenerationRequest) -> One:
        """Encode one input, whose tensors are given. Implementations call `_encode`."""

    def _prepare(self, sequence: Sequence, done: Callable[[Encoded], None]) -> None:
        try:
            done(self._encode_all(sequence))
        except RequestEnded:
            return
        except GenaiServerError as error:
            done(error)
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            done(RunnerFailed(f"{self.noun} cannot be read: {error}"))
        except Exception:  # the request would wait for ever
            log.exception("request %s met an internal error while it was prepared", sequence.request.request_id)
            done(RunnerFailed("internal error; see the server log"))

    def _encoded(self, sequence: Sequence, digest: str, path: str) -> One:
        """Encode one input, whose tensors are in the file at `path`, or take the result from the cache.

        `digest` identifies the input. Raises RequestEnded if the sequence has ended.
        """
        if sequence.state is SequenceState.ENDED:
            raise RequestEnded
        found = self._kept.get(digest)
        if found is None:
            with open(path, "rb") as file, np.load(file, allow_pickle=False) as tensors:
                found = self._made(digest, dict(tensors), sequence.request)
            self.num_encoded += 1
            self._kept[digest] = found
        self._kept.move_to_end(digest)
        self._given.append((sequence, digest))
        self._drop_unused()
        return found

    def _num_present(self) -> int:
        """Number of encoded inputs that unfinished requests have."""
        self._given = [given for given in self._given if given[0].state is not SequenceState.ENDED]
        return len(self._given)

    def _drop_unused(self) -> None:
        """Drop encoded inputs that no unfinished request has, the least recently used first, down to `max_bytes`."""
        self._num_present()
        present = {digest for _, digest in self._given}
        unused = [digest for digest in self._kept if digest not in present]
        num_bytes = sum(self._kept[digest].num_bytes for digest in unused)
        for digest in unused:
            if num_bytes <= self._max_bytes:
                return
            num_bytes -= self._kept.pop(digest).num_bytes
