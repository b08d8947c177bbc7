"""Describes a decoder's ONNX graph by the names and shapes of its inputs and outputs (`DecoderGraph`). The code that
rewrites the graph, allocates the KV cache and runs passes reads this description instead of the graph.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx

ATTENTION = "GroupQueryAttention"
# Bytes of the scale that follows each head of a token's keys or values in a KV cache of 8 bits.
_SCALE_BYTES = 4
# The indexes of the attention operator's inputs for past keys and values.
PAST = slice(3, 5)


class DoesNotFit(Exception):
    """Raised if a model cannot run in the way that was tried, above all in the batch; onnxruntime-genai then runs its
    sequences one by one. The message gives the reason.
    """


@dataclass(frozen=True)
class LayerState:
    """A state of fixed size that a layer of the graph has for each sequence, such as the last inputs of a convolution.

    `past` and `present` are the names of the graph's input for the state before a pass, and of its output for the state
    after it.
    """

    past: str
    present: str
    # The shape for one sequence. A convolution of width K keeps [K - 1, channels], the last inputs in their order.
    shape: tuple[int, ...]
    # The numpy type that the values have in the model's graph. The engine may keep them in memory in a wider one.
    type: Any

    def num_bytes(self, type: Any) -> int:
        """Return how many bytes the state of one sequence takes in memory if its values are kept there in the numpy
        type `type`, which need not be that of the graph.
        """
        return math.prod(self.shape) * int(np.dtype(type).itemsize)


@dataclass(frozen=True)
class LowRankPath:
    """A place in a graph where a LoRA adapter takes effect: a path x·A·B that runs parallel to a weight matrix, which
    maps `num_inputs` values to `num_outputs` values.

    `a` and `b` are the names of the graph's inputs for the adapter's matrices A and B.
    """

    # Names of the graph's inputs: [num_inputs, rank] and [rank, num_outputs].
    a: str
    b: str
    num_inputs: int
    num_outputs: int


@dataclass(frozen=True)
class VisionFiles:
    """The two graphs that a model has in addition to its decoder to read images or audio besides text: `vision` encodes
    them into features (vectors), and `embedding` puts these among the embeddings of tokens.
    """

    vision: Path
    embedding: Path
    # The token whose embeddings are replaced by features.
    image_token: int
    hidden_size: int
    # Whether the model reads audio instead of images.
    has_audio: bool
    # Number of image patches on each side of the square that becomes one feature.
    merge_size: int
    # Whether the decoder has an adapter for prompts with images, as Phi-4-multimodal's has.
    has_adapter: bool
    # Names of the graphs' inputs and outputs, by the library's names.
    names: Mapping[str, str] = field(default_factory=dict)

    def name(self, name: str) -> str:
        """Return the name that the model's own graphs have for the input or output that onnxruntime-genai calls
        `name`.
        """
        return self.names.get(name, name)

    @property
    def features(self) -> str:
        """Name of the tensor with the features of images or audio, which is an output of the encoder graph and an input
        of the embedding graph.
        """
        return self.name("audio_features" if self.has_audio else "image_features")

    @property
    def part(self) -> str:
        """Name of the section of genai_config.json that describes the encoder graph: "speech" or "vision"."""
        return "speech" if self.has_audio else "vision"

    @property
    def given(self) -> str:
        """Name of the encoder graph's input that has what is to be encoded: pixels of images, or the spectrogram of
        audio.
        """
        return self.name("audio_embeds" if self.has_audio else "pixel_values")


@dataclass(frozen=True)
class DecoderGraph:
    """Description of a decoder's graph that can run in the batch: the names and shapes of its inputs and outputs, and
    what it can do. It is created when a model is loaded, and does not change.
    """

    path: Path
    # Name of the input for token ids or, if another graph computes embeddings, for embeddings [rows, tokens,
    # hidden_size].
    input_ids: str
    attention_mask: str
    position_ids: str | None
    logits: str
    # Names of the inputs for keys and values of all layers, in the same order as the outputs in `present_names`.
    past_names: tuple[str, ...]
    present_names: tuple[str, ...]
    num_kv_heads: int
    head_size: int
    # The numpy type of the KV cache in memory. In the graph's own inputs it may have more bits. With int8, each head of
    # a token's keys or values has a scale of its own, a 32-bit float in the bytes behind the head's values.
    cache_type: Any
    # The numpy type of the values.
    logits_type: Any
    # The graphs that compute the embeddings; None if the decoder reads token ids.
    vision: VisionFiles | None = None
    # Maximum number of tokens in the KV cache of some layers in an `og.Generator`; 0 if no layer has a limit.
    window: int = 0
    # For a rope with short and long factors, the number of tokens up to which a row has the short ones; a longer row
    # has the long factors from its first token on. None without such a rope.
    switches_at: int | None = None
    # Whether the graph returns only the logits of the last token, however many tokens it reads.
    gives_last_logits_only: bool = False
    # The LoRA paths, whose inputs take adapters. Empty if there are none, or if the graph has inputs for adapters that
    # the batch does not support; these keep their default values.
    low_rank_paths: tuple[LowRankPath, ...] = ()
    # Number of axes on which each token has a position, for images; 0 if positions have no such dimension. Text has the
    # same position on each axis.
    position_axes: int = 0
    # The states of convolutions, and of linear attention.
    conv_states: tuple[LayerState, ...] = ()
    recurrent_states: tuple[LayerState, ...] = ()
    # Keys and values of encoded audio, which a decoder only reads.
    cross_states: tuple[LayerState, ...] = ()
    # Names of hidden states [rows, tokens, hidden_size]: the input of a head for multi-token prediction, which reads
    # them in addition to tokens, and the output that a model has for such a head. "" if there is none.
    hidden_input: str = ""
    hidden_output: str = ""
    hidden_size: int = 0
    # Number of tokens in a block of the KV cache on a device with memory of its own; 0 in CPU memory, where a slot is
    # no list of blocks.
    block_tokens: int = 0
    # Whether attention multiplies bfloat16 numbers where the processor can, and adds them in 32 bits.
    has_bf16_attention: bool = False
    # Whether genai-server-native computes all products with the model's weights. With its attention, a token's result
    # is then bitwise the same in any pass.
    has_packed_products_only: bool = False

    @property
    def is_native(self) -> bool:
        """Whether the decoder runs in CPU memory with the operators of the package genai-server-native. Otherwise its
        KV cache is in blocks on a device with memory of its own.
        """
        return not self.block_tokens

    def in_32_bits(self) -> "DecoderGraph":
        """Return the description of this decoder after its graph was rewritten to compute with 32-bit floats, which
        engine/graph_rewriting/cpu_operators.py does for decoders in CPU memory. This object does not change.
        """
        wide: dict[str, Any] = {
            kind: tuple(replace(state, type=np.float32) for state in getattr(self, kind))
            for kind in ("conv_states", "recurrent_states", "cross_states")
        }
        return replace(self, cache_type=np.float32, logits_type=np.float32, **wide)

    @cached_property
    def has_states(self) -> bool:
        """Whether some layers have recurrent states, whose size does not depend on the number of tokens, instead of a
        KV cache.
        """
        return bool(self.conv_states or self.recurrent_states)

    @cached_property
    def bytes_per_row(self) -> int:
        """Bytes that one sequence takes in memory, whatever its length: its recurrent states and encoded audio in all
        layers, but no KV cache.
        """
        # The operators of genai-server-native keep recurrent states in 32-bit floats, whatever type the graph has.
        recurrent = sum(state.num_bytes(np.float32) for state in (*self.conv_states, *self.recurrent_states))
        return recurrent + sum(state.num_bytes(state.type) for state in self.cross_states)

    @property
    def cache_width(self) -> int:
        """Number of elements of the type `cache_type` that the keys (or the values) of one token take in one attention
        head of the KV cache. With int8, these include the bytes of the head's scale.
        """
        return self.head_size + (_SCALE_BYTES if np.dtype(self.cache_type) == np.int8 else 0)

    @property
    def bytes_per_token(self) -> int:
        """Bytes that the keys and values of one token take in the KV cache, in all layers together."""
        return len(self.past_names) * self.num_kv_heads * self.cache_width * int(np.dtype(self.cache_type).itemsize)


def local_window(node: onnx.NodeProto) -> int:
    """Return the size in tokens of the sliding window of an attention node; 0 if the node has no window, or is not a
    GroupQueryAttention.
    """
    if node.op_type != ATTENTION:
        return 0
    return max(0, next((a.i for a in node.attribute if a.name == "local_window_size"), 0))
