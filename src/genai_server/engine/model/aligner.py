"""Finds when each token of a transcript was spoken, from the decoder's attention to the audio (`Aligner`), as
openai/whisper does (timing.py).

The decoder's graph is reduced to the part that returns the cross-attention scores over the audio, of those attention
heads that follow the speech (engine/graph_rewriting/cross_attention.py). This part reads a whole transcript at once,
without a KV cache. Of all paths through the scores that never go back in time, the path with the largest sum shows
where in the audio each token is (dynamic time warping).
"""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from genai_server.engine.encoded_inputs import EncodedAudio
from genai_server.engine.graph_description import DecoderGraph, DoesNotFit
from genai_server.engine.graph_rewriting.cross_attention import score_heads
from genai_server.engine.model.graph_reader import read_cross_decoder
from genai_server.engine.model.session_options import open_encoder
from genai_server.errors import RunnerFailed, in_one_line
from genai_server.messages.generation_request import Alignment
from genai_server.model_files.config_files import read_object
from genai_server.model_files.speech_and_vision import GENERATION, TIME_PRECISION
from genai_server.options.device import DEFAULT_OPTIONS, DeviceOptions

_HEADS = "alignment_heads"


class Aligner:
    """Computes when the tokens of a transcript were spoken, for clients that ask for the times of words. It has a
    session of ONNX Runtime for a part of the decoder. The thread that encodes audio creates and uses it.

    `why_no_times` must return "" for `model_dir`. `threads` is the number of threads, 0 for the usable physical cores,
    and `options` are those of the device.
    """

    def __init__(self, model_dir: Path, threads: int, options: DeviceOptions = DEFAULT_OPTIONS) -> None:
        decoder = read_cross_decoder(model_dir)
        model = onnx.load(str(decoder.path), load_external_data=False)
        self._outputs = score_heads(model.graph, decoder, alignment_heads(model_dir, decoder))
        self._session: Any = open_encoder(model.SerializeToString(), threads, options, folder=decoder.path.parent)
        input_names = {value.name for value in self._session.get_inputs()}
        shape = (1, decoder.num_kv_heads, 0, decoder.head_size)
        self._empty = {name: np.zeros(shape, decoder.cache_type) for name in decoder.past_names if name in input_names}
        self._audio_states = [state.past for state in decoder.cross_states]
        self._given = input_names
        self._input_ids = decoder.input_ids

    def times(self, alignment: Alignment, audio: EncodedAudio) -> list[float]:
        """Return when each token of a transcript begins, in seconds from the start of `audio`, the encoded window of
        the recording. Raises RunnerFailed.

        `alignment` has the tokens of the transcript. Its first `num_before` tokens precede the text of the transcript
        and have no times in the result.
        """
        inputs: dict[str, Any] = {self._input_ids: np.array([alignment.tokens], np.int32), **self._empty}
        inputs |= {
            name: values for name, values in zip(self._audio_states, audio.states, strict=True) if name in self._given
        }
        try:
            outputs = self._session.run(self._outputs, inputs)
        except Exception as error:  # ONNX Runtime's errors have no base of their own
            raise RunnerFailed(f"the times of tokens cannot be computed: {in_one_line(error)}") from error
        scores = np.concatenate([each[0] for each in outputs]).astype(np.float32, copy=False)
        # The token before the text has the weights with which the text's first one is chosen.
        scores = scores[:, alignment.num_before - 1 : -1]
        return token_times(scores, round(alignment.seconds / TIME_PRECISION), TIME_PRECISION)


def why_no_times(model_dir: Path) -> str:
    """Return the reason why an Aligner cannot compute the times of tokens for the speech recognition model in
    `model_dir`; "" if it can. `check_model_directory` must have accepted the directory.
    """
    try:
        decoder = read_cross_decoder(model_dir)
        graph = onnx.load(str(decoder.path), load_external_data=False).graph
        score_heads(graph, decoder, alignment_heads(model_dir, decoder))
    except DoesNotFit as reason:
        return str(reason)
    return ""


def alignment_heads(model_dir: Path, decoder: DecoderGraph) -> dict[int, list[int]]:
    """Return the numbers of the decoder's cross-attention heads that follow the speech, by layer, as the file
    generation_config.json in `model_dir` lists them (alignment_heads).

    If the file does not list any, all heads of the last half of the layers are returned. Raises DoesNotFit if the
    decoder does not have the listed heads.
    """
    num_layers = len(decoder.past_names) // 2
    heads = read_object(model_dir / GENERATION).get(_HEADS)
    if heads is None:
        heads = [(layer, head) for layer in range(num_layers // 2, num_layers) for head in range(decoder.num_kv_heads)]
    by_layer: dict[int, list[int]] = {}
    try:
        for layer, head in heads:
            if not (0 <= layer < num_layers and 0 <= head < decoder.num_kv_heads):
                raise ValueError
            by_layer.setdefault(layer, []).append(head)
    except (TypeError, ValueError):
        raise DoesNotFit(f"{GENERATION} has {_HEADS} that its decoder does not have") from None
    if not by_layer:
        raise DoesNotFit(f"{GENERATION} has no {_HEADS}")
    return by_layer


Weights = NDArray[np.float32]
# Each weight becomes the median of this number of frames.
_MEDIAN = 7
_TINY = 1e-6


def token_times(scores: Weights, num_frames: int, seconds_per_frame: float) -> list[float]:
    """Return when the tokens of a transcript begin, in seconds from the start of the audio.

    `scores` [heads, tokens, frames] are attention scores before the softmax. The scores for a token were computed at
    the token before it, because the model attends to the audio of a token when it predicts the token. Only the first
    `num_frames` frames have audio, each of `seconds_per_frame` seconds.
    """
    heads = (_followed(head) for head in scores[:, :, : max(1, num_frames)])
    attention = sum(heads, np.zeros(1, np.float32))
    tokens, frames = _path(-attention)
    begins = np.flatnonzero(np.diff(tokens, prepend=-1))
    times: list[float] = (frames[begins] * seconds_per_frame).tolist()
    return times


def _followed(scores: Weights) -> Weights:
    """Return the attention weights [tokens, frames] of one head, standardized: each relative to the weights of all
    tokens for the same frame, and smoothed over the frames.

    `scores` [tokens, frames] are the head's attention scores before the softmax.
    """
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return _smooth((weights - weights.mean(axis=0)) / (weights.std(axis=0) + _TINY))


def _smooth(weights: Weights) -> Weights:
    """Return weights [tokens, frames] in which each is replaced with the median of itself and the weights of the
    neighboring frames. At both ends, the frames are mirrored.
    """
    half = _MEDIAN // 2
    num_frames = weights.shape[-1]
    if num_frames <= half:
        return weights
    padded = np.pad(weights, ((0, 0), (half, half)), mode="reflect")
    neighbors = [padded[:, first : first + num_frames] for first in range(_MEDIAN)]
    # Sorted by exchanging neighbors: numpy's median takes several times as long for so few.
    for turn in range(_MEDIAN):
        for low in range(turn % 2, _MEDIAN - 1, 2):
            pair = neighbors[low], neighbors[low + 1]
            neighbors[low : low + 2] = np.minimum(*pair), np.maximum(*pair)
    return neighbors[half]


def _path(costs: Weights) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the path with the lowest sum of costs from the first cell [0, 0] of the matrix `costs` to its last cell,
    as the row and the column of each cell on the path. Each step goes to the next column, the next row, or both.
    """
    num_rows, num_columns = costs.shape
    total = np.empty((num_rows, num_columns))
    total[0] = np.cumsum(costs[0], dtype=np.float64)
    for row in range(1, num_rows):
        above = total[row - 1]
        best = np.minimum(above, np.concatenate(([np.inf], above[:-1])))
        # From the left is cheaper where a sum along the row began lower: that needs no loop over the columns.
        along = np.cumsum(costs[row], dtype=np.float64)
        total[row] = np.minimum.accumulate(best - along + costs[row]) + along
    row, column = num_rows - 1, num_columns - 1
    cells = [(row, column)]
    while row or column:
        steps = [(row - 1, column - 1), (row - 1, column), (row, column - 1)]
        row, column = min((each for each in steps if min(each) >= 0), key=total.__getitem__)
        cells.append((row, column))
    rows, columns = np.array(cells[::-1]).T
    return rows, columns
