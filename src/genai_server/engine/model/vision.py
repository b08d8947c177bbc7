"""Runs the graphs next to the decoder's of a model that reads images: images to features, and tokens to embeddings."""

import logging
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from genai_server.engine.decoder_graph import VisionFiles
from genai_server.engine.model.session_options import NUMPY_TYPES, open_encoder, open_with, session_options
from genai_server.errors import RunnerFailed, in_one_line
from genai_server.options.device import DEFAULT_OPTIONS, DeviceOptions

log = logging.getLogger(__name__)
Features = NDArray[Any]
# How much the features of a graph with matrices of 8 bits may differ, as a share of their norm.
MAX_ERROR = 0.1
# Inputs of vision graphs whose values the decoder's configuration does not name.
_IDS, _EMBEDDINGS, _LENGTHS = "input_ids", "inputs_embeds", "audio_lengths"


def features_graph(files: VisionFiles) -> bytes:
    """A vision graph whose pixel values [1, features, hidden_size] are the features themselves, or such a speech graph.

    With it, onnxruntime-genai takes images that have been encoded already, and loads no weights for them. It takes the
    form of the features from this graph, so they are what the embedding graph takes.
    """
    embedding = onnx.load(str(files.embedding), load_external_data=False).graph
    wanted = next(value.type.tensor_type for value in embedding.input if value.name == files.features)
    given, made = files.given, files.features
    rows: list[int | str] = ["features", files.hidden_size]
    # The library requires this input of a speech graph.
    lengths = [helper.make_tensor_value_info(files.name(_LENGTHS), onnx.TensorProto.INT64, [1])] if files.hears else []
    # Those of a sound have an axis for sounds, which the library takes away.
    shape = rows if len(wanted.shape.dim) == len(rows) and not files.hears else [1, *rows]
    graph = helper.make_graph(
        [
            helper.make_node("Cast", [given], ["cast"], to=wanted.elem_type),
            helper.make_node("Reshape", ["cast", "to"], [made]),
        ],
        "features",
        [helper.make_tensor_value_info(given, onnx.TensorProto.FLOAT, [1, *rows]), *lengths],
        [helper.make_tensor_value_info(made, wanted.elem_type, shape)],
        [numpy_helper.from_array(np.array([*[1] * (len(shape) - 2), -1, files.hidden_size]), "to")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    serialized: bytes = model.SerializeToString()
    return serialized


class ImageEncoder:
    """Runs the vision graph.

    `int8` is the graph with matrices of 8 bits. Both graphs encode the first image that is not for an exact request,
    which decides: the other one is dropped. That of 8 bits must be `min_gain` times as fast, with features that differ
    by `MAX_ERROR` at most. If it fails, the model's own stays. Exact requests always have the model's own, which is
    opened again for the first of them.
    """

    def __init__(
        self,
        files: VisionFiles,
        threads: int,
        options: DeviceOptions = DEFAULT_OPTIONS,
        int8: Path | None = None,
        min_gain: float = 1.0,
    ) -> None:
        self._files = files
        self.noun = "a sound" if files.hears else "an image"
        self._open_own = partial(open_encoder, files.vision, threads, options)
        self._own: Any = self._open_own()
        self._int8: Any = None
        self._min_gain = min_gain
        self._inputs = {value.name: NUMPY_TYPES[value.type] for value in self._own.get_inputs()}
        if int8 is not None:
            try:
                self._int8 = open_encoder(int8, threads, options, optimized=True)
            except Exception as error:  # ONNX Runtime's errors have no base of their own
                self._tell_failure(error)
        self._is_decided = self._int8 is None

    def encode(self, tensors: Mapping[str, NDArray[Any]], *, exact: bool = False) -> Features:
        """The features [features, hidden_size] of one image, from its tensors by the library's names.

        With `exact` they do not depend on which graph is faster. Raises RunnerFailed.
        """
        given = {self._files.name(name): values for name, values in tensors.items()}
        given = {name: given[name].astype(kind, copy=False) for name, kind in self._inputs.items() if name in given}
        try:
            if exact or self._int8 is None:
                self._own = self._own or self._open_own()
                features = self._run(self._own, given)
            else:
                features = self._run(self._int8, given) if self._is_decided else self._choose(given)
        except Exception as error:  # as above
            raise RunnerFailed(f"{self.noun} cannot be encoded: {in_one_line(error)}") from error
        return features.reshape(-1, features.shape[-1])

    def _run(self, session: Any, given: Mapping[str, NDArray[Any]]) -> Features:
        features: Features = session.run([self._files.features], given)[0]
        return features

    def _choose(self, given: Mapping[str, NDArray[Any]]) -> Features:
        """The features by the graph that stays."""
        own, seconds = self._timed(self._own, given)
        int8, self._int8, self._is_decided = self._int8, None, True
        try:
            rounded, int8_seconds = self._timed(int8, given)
            gain, error = seconds / int8_seconds, relative_error(rounded, own)
        except Exception as failure:  # as above
            self._tell_failure(failure)
            return own
        is_chosen = gain >= self._min_gain and error <= MAX_ERROR
        log.info(
            "weights of 8 bits are %s for %s: %.2f times as fast as the model's own, and features differ by %.2g",
            "used" if is_chosen else "not used",
            self.noun,
            gain,
            error,
        )
        if not is_chosen:
            return own
        self._own, self._int8 = None, int8
        return rounded

    def _timed(self, session: Any, given: Mapping[str, NDArray[Any]]) -> tuple[Features, float]:
        began = time.perf_counter()
        features = self._run(session, given)
        return features, time.perf_counter() - began

    def _tell_failure(self, error: Exception) -> None:
        log.warning("weights of 8 bits are not used for %s: %s", self.noun, in_one_line(error))


def relative_error(found: Features, expected: Features) -> float:
    """The norm of the difference, as a share of the norm of the expected features."""
    wide = expected.astype(np.float32)
    return float(np.linalg.norm(found.astype(np.float32) - wide) / np.linalg.norm(wide))


class TokenEmbedder:
    """Runs the embedding graph."""

    def __init__(self, files: VisionFiles) -> None:
        self.image_token = files.image_token
        # It only looks rows of a table up, which is no work for several threads or for another device.
        self._session: Any = open_with(files.embedding, session_options(DEFAULT_OPTIONS, 1), DEFAULT_OPTIONS)
        inputs = {value.name: value for value in self._session.get_inputs()}
        self._ids, self._output = files.name(_IDS), files.name(_EMBEDDINGS)
        self._features = files.features
        # Some graphs take features in groups, one for each image.
        self._grouped = len(inputs[self._features].shape) > 2
        kinds = {name: NUMPY_TYPES[value.type] for name, value in inputs.items()}
        self._no_features = np.zeros((0, files.hidden_size), kinds[self._features])
        # Such as features of sounds, which no prompt has.
        others = kinds.keys() - {self._ids, self._features}
        self._others = {name: self._no_features.astype(kinds[name]) for name in others}

    def embed(self, ids: NDArray[np.int64], features: Features | None = None) -> NDArray[Any]:
        """The embeddings [1, tokens, hidden_size] of tokens [1, tokens].

        The image tokens among them have `features` [image tokens, hidden_size], in their order. An image token without
        a feature has zeros. Raises RunnerFailed.
        """
        given = self._no_features
        if num_images := int(np.count_nonzero(ids == self.image_token)):
            given = np.zeros((num_images, given.shape[1]), given.dtype)
            if features is not None:
                given[: len(features)] = features
        inputs = {self._ids: ids, self._features: given[np.newaxis] if self._grouped else given, **self._others}
        try:
            embeddings: NDArray[Any] = self._session.run([self._output], inputs)[0]
        except Exception as error:  # as above
            raise RunnerFailed(f"tokens cannot be embedded: {in_one_line(error)}") from error
        return embeddings
