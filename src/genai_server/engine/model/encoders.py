"""Runs the graphs that a model has in addition to its decoder, in sessions of ONNX Runtime: encoders of images and
audio in chats (`ImageEncoder`), of speech to transcribe (`AudioEncoder`), and token embeddings (`TokenEmbedder`).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from genai_server.engine.encoded_inputs import EncodedAudio
from genai_server.engine.graph_description import VisionFiles
from genai_server.engine.model.graph_reader import EncoderFiles
from genai_server.engine.model.session_options import NUMPY_TYPES, open_encoder, open_with, session_options
from genai_server.errors import RunnerFailed, in_one_line
from genai_server.model_files.speech_and_vision import FEATURES
from genai_server.options.device import DEFAULT_OPTIONS, DeviceOptions

Features = NDArray[Any]
# Inputs of vision graphs whose values the decoder's configuration does not name.
_IDS, _EMBEDDINGS, _LENGTHS = "input_ids", "inputs_embeds", "audio_lengths"


def features_graph(files: VisionFiles) -> bytes:
    """Return a serialized ONNX model that stands in for the encoder of a model that reads images or audio: it returns
    its input, features [1, features, hidden_size], unchanged.

    With it, onnxruntime-genai accepts images or audio that the engine has encoded already, and does not load the
    encoder's weights. The shape and type of its output are those that the embedding graph in `files` expects.
    """
    embedding = onnx.load(str(files.embedding), load_external_data=False).graph
    wanted = next(value.type.tensor_type for value in embedding.input if value.name == files.features)
    input_name, output_name = files.given, files.features
    rows: list[int | str] = ["features", files.hidden_size]
    # The library requires this input of a speech graph.
    lengths = (
        [helper.make_tensor_value_info(files.name(_LENGTHS), onnx.TensorProto.INT64, [1])] if files.has_audio else []
    )
    # Features of audio have an axis for recordings, which the library removes.
    shape = rows if len(wanted.shape.dim) == len(rows) and not files.has_audio else [1, *rows]
    graph = helper.make_graph(
        [
            helper.make_node("Cast", [input_name], ["cast"], to=wanted.elem_type),
            helper.make_node("Reshape", ["cast", "to"], [output_name]),
        ],
        "features",
        [helper.make_tensor_value_info(input_name, onnx.TensorProto.FLOAT, [1, *rows]), *lengths],
        [helper.make_tensor_value_info(output_name, wanted.elem_type, shape)],
        [numpy_helper.from_array(np.array([*[1] * (len(shape) - 2), -1, files.hidden_size]), "to")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    serialized: bytes = model.SerializeToString()
    return serialized


class ImageEncoder:
    """Encodes images or audio clips in chats, with the encoder graph of a model, in a session of ONNX Runtime. The
    thread that encodes images creates it.

    `files` describes the model's graphs. `threads` is the number of threads, 0 for the usable physical cores, and
    `options` are those of the device. If `packed` is not None, it is the path of the same encoder with
    genai-server-native's matrix products and 8-bit weights, which is run instead.
    """

    def __init__(
        self,
        files: VisionFiles,
        threads: int,
        options: DeviceOptions = DEFAULT_OPTIONS,
        packed: Path | None = None,
    ) -> None:
        self._features = files.features
        self._name = files.name
        self.noun = "a sound" if files.has_audio else "an image"
        self._session: Any = open_encoder(packed or files.vision, threads, options, is_packed=packed is not None)
        self._inputs = {value.name: NUMPY_TYPES[value.type] for value in self._session.get_inputs()}

    def encode(self, tensors: Mapping[str, NDArray[Any]]) -> Features:
        """Return the features [features, hidden_size] of one image or audio clip, which take the place of the
        embeddings of image or audio tokens. Raises RunnerFailed.

        `tensors` are the encoder's inputs for it, such as pixels, by onnxruntime-genai's names.
        """
        inputs = {self._name(name): values for name, values in tensors.items()}
        inputs = {name: inputs[name].astype(kind, copy=False) for name, kind in self._inputs.items() if name in inputs}
        try:
            features: Features = self._session.run([self._features], inputs)[0]
        except Exception as error:  # ONNX Runtime's errors have no base of their own
            raise RunnerFailed(f"{self.noun} cannot be encoded: {in_one_line(error)}") from error
        return features.reshape(-1, features.shape[-1])


class TokenEmbedder:
    """Computes the embeddings of tokens with a model's embedding graph, for decoders that read embeddings in place of
    token ids because prompts may have images or audio.
    """

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
        # Such as features of audio, which no prompt has.
        other_inputs = kinds.keys() - {self._ids, self._features}
        self._others = {name: self._no_features.astype(kinds[name]) for name in other_inputs}

    def embed(self, ids: NDArray[np.int64], features: Features | None = None) -> NDArray[Any]:
        """Return the embeddings [1, tokens, hidden_size] of the tokens `ids` [1, tokens]. Raises RunnerFailed.

        Image tokens, which stand for images or audio, get the rows of `features` [image tokens, hidden_size] instead,
        in order. If there are fewer rows than image tokens, or `features` is None, the last image tokens get zeros.
        """
        image_features = self._no_features
        if num_images := int(np.count_nonzero(ids == self.image_token)):
            image_features = np.zeros((num_images, image_features.shape[1]), image_features.dtype)
            if features is not None:
                image_features[: len(features)] = features
        inputs = {
            self._ids: ids,
            self._features: image_features[np.newaxis] if self._grouped else image_features,
            **self._others,
        }
        try:
            embeddings: NDArray[Any] = self._session.run([self._output], inputs)[0]
        except Exception as error:  # ONNX Runtime's errors have no base of their own
            raise RunnerFailed(f"tokens cannot be embedded: {in_one_line(error)}") from error
        return embeddings


def unencoded(tensors: Mapping[str, NDArray[Any]]) -> EncodedAudio:
    """Return the spectrogram of a recording as an EncodedAudio without encoder outputs. It is used in place of
    `AudioEncoder.encode` when onnxruntime-genai runs the encoder itself.

    `tensors` are the inputs of the encoder, by name. Raises RunnerFailed if the spectrogram is missing.
    """
    if FEATURES not in tensors:
        raise RunnerFailed(f"a sound has no {FEATURES}")
    return EncodedAudio(tensors[FEATURES], [])


class AudioEncoder:
    """Encodes the audio to transcribe, with the encoder graph of a speech recognition model, in a session of ONNX
    Runtime. The thread that encodes audio creates it.

    `files` describes the graph. `threads` is the number of threads, 0 for the usable physical cores, and `options` are
    those of the device. If `packed` is not None, it is the path of the same encoder with genai-server-native's matrix
    products and 8-bit weights, which is run instead.
    """

    def __init__(
        self,
        files: EncoderFiles,
        threads: int,
        options: DeviceOptions = DEFAULT_OPTIONS,
        packed: Path | None = None,
    ) -> None:
        self._files = files
        self._session: Any = open_encoder(packed or files.path, threads, options, is_packed=packed is not None)
        (features,) = self._session.get_inputs()
        self._type = NUMPY_TYPES[features.type]
        # Mels and frames.
        self.shape: tuple[int, ...] = tuple(features.shape[1:])

    def encode(self, tensors: Mapping[str, NDArray[Any]]) -> EncodedAudio:
        """Return the encoded audio of one window of a recording: its spectrogram, and the keys and values to which the
        decoder attends.

        `tensors` are the encoder's inputs by name, with the spectrogram [1, mels, frames] among them. Raises
        RunnerFailed if the spectrogram is missing or has another shape, or the encoder fails.
        """
        features = tensors.get(FEATURES)
        if features is None or features.shape != (1, *self.shape):
            shape = None if features is None else features.shape
            raise RunnerFailed(f"a sound needs features [1, {', '.join(map(str, self.shape))}], given {shape}")
        try:
            states = self._session.run(list(self._files.presents), {self._files.features: features.astype(self._type)})
        except Exception as error:  # ONNX Runtime's errors have no base of their own
            raise RunnerFailed(f"a sound cannot be encoded: {in_one_line(error)}") from error
        return EncodedAudio(features, states)
