"""Finds when the tokens of a transcript were spoken, with a part of the decoder's graph.

The graph returns the cross-attention scores over the audio, for the heads that follow the speech
(engine/graph_rewriting/attention_scores.py). It reads a transcript at once, without a KV cache.
"""

from pathlib import Path
from typing import Any

import numpy as np
import onnx

from genai_server.engine.decoder_graph import DecoderGraph, DoesNotFit
from genai_server.engine.encoded_audio import EncodedAudio
from genai_server.engine.graph_rewriting.attention_scores import score_heads
from genai_server.engine.model.session_options import open_encoder
from genai_server.engine.model.speech_files import read_cross_decoder
from genai_server.engine.token_times import token_times
from genai_server.errors import RunnerFailed, in_one_line
from genai_server.messages.generation_request import Alignment
from genai_server.model_files.json_file import read_object
from genai_server.model_files.speech_model import GENERATION, TIME_PRECISION
from genai_server.options.device import DEFAULT_OPTIONS, DeviceOptions

_HEADS = "alignment_heads"


class Aligner:
    """Computes token times with a session of the rewritten decoder graph.

    The model directory must be one for which `why_no_times` returns "".
    """

    def __init__(self, model_dir: Path, threads: int, options: DeviceOptions = DEFAULT_OPTIONS) -> None:
        decoder = read_cross_decoder(model_dir)
        model = onnx.load(str(decoder.path), load_external_data=False)
        self._outputs = score_heads(model.graph, decoder, alignment_heads(model_dir, decoder))
        self._session: Any = open_encoder(model.SerializeToString(), threads, options, folder=decoder.path.parent)
        given = {value.name for value in self._session.get_inputs()}
        shape = (1, decoder.num_kv_heads, 0, decoder.head_size)
        self._empty = {name: np.zeros(shape, decoder.cache_type) for name in decoder.past_names if name in given}
        self._sounds = [state.past for state in decoder.cross_states]
        self._given = given
        self._input_ids = decoder.input_ids

    def times(self, alignment: Alignment, sound: EncodedAudio) -> list[float]:
        """Seconds from the start of the window at which each token of a transcript begins. Raises RunnerFailed.

        The first `num_before` tokens of the alignment come before the transcript and have no times.
        """
        inputs: dict[str, Any] = {self._input_ids: np.array([alignment.tokens], np.int32), **self._empty}
        inputs |= {name: values for name, values in zip(self._sounds, sound.states, strict=True) if name in self._given}
        try:
            found = self._session.run(self._outputs, inputs)
        except Exception as error:  # ONNX Runtime's errors have no base of their own
            raise RunnerFailed(f"the times of tokens cannot be computed: {in_one_line(error)}") from error
        scores = np.concatenate([each[0] for each in found]).astype(np.float32, copy=False)
        # The token before the text has the weights with which the text's first one is chosen.
        scores = scores[:, alignment.num_before - 1 : -1]
        return token_times(scores, round(alignment.seconds / TIME_PRECISION), TIME_PRECISION)


def why_no_times(model_dir: Path) -> str:
    """Why no Aligner is possible for a checked model directory; "" if one is possible."""
    try:
        decoder = read_cross_decoder(model_dir)
        graph = onnx.load(str(decoder.path), load_external_data=False).graph
        score_heads(graph, decoder, alignment_heads(model_dir, decoder))
    except DoesNotFit as reason:
        return str(reason)
    return ""


def alignment_heads(model_dir: Path, decoder: DecoderGraph) -> dict[int, list[int]]:
    """Cross-attention heads that follow the speech, by layer, as generation_config.json names them.

    Without an entry there, all heads of the last half of the layers are returned. Raises DoesNotFit for heads that the
    decoder does not have.
    """
    num_layers = len(decoder.past_names) // 2
    given = read_object(model_dir / GENERATION).get(_HEADS)
    if given is None:
        given = [(layer, head) for layer in range(num_layers // 2, num_layers) for head in range(decoder.num_kv_heads)]
    found: dict[int, list[int]] = {}
    try:
        for layer, head in given:
            if not (0 <= layer < num_layers and 0 <= head < decoder.num_kv_heads):
                raise ValueError
            found.setdefault(layer, []).append(head)
    except (TypeError, ValueError):
        raise DoesNotFit(f"{GENERATION} has {_HEADS} that its decoder does not have") from None
    if not found:
        raise DoesNotFit(f"{GENERATION} has no {_HEADS}")
    return found
