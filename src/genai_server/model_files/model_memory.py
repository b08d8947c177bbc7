"""Estimates, from the files in a model's directory and without reading the weights, how much memory the loaded model
needs for its weights and its KV cache (`read_model_memory`).
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from genai_server.errors import GenaiServerError
from genai_server.model_files.config_files import GENAI_CONFIG, read_object
from genai_server.model_files.pooling_model import graph_of, task_of

# Memory of loaded weights, as a multiple of their size on disk: some are packed for the processor.
LOADED = 1.2
# That of a head for multi-token prediction.
_HEAD = "mtp"
_FOUR_BITS = b"MatMulNBits"
# Larger graphs have their weights inside, and are not searched for operators.
_MAX_GRAPH_BYTES = 64 * 1024 * 1024
# Bytes of an engine's process without a model.
RUNTIME = 200 * 1024 * 1024
# Tokens that coding agents need: their instructions and tools alone take 15,000 to 30,000.
AGENT_TOKENS = 32_768


@dataclass(frozen=True)
class ModelMemory:
    """The estimated memory of a loaded model: the bytes of its weights, and those of the KV cache for one token. Values
    that the model's files do not show are 0. `read_model_memory` returns it.
    """

    # Bytes of the loaded weights.
    weights: int = 0
    # Bytes of the keys and values of one token in 32 bits.
    per_token: int = 0
    # The model's context, in tokens.
    context_length: int = 0
    # Bytes of the keys and values of one token in 8 bits, with their scales.
    per_token_in_8_bits: int = 0

    def with_draft_model(self, draft: "ModelMemory") -> "ModelMemory":
        """Return the memory of this model and its draft model (speculative decoding) together. `draft` is the memory of
        the draft model, whose KV cache holds the same number of tokens.
        """
        return replace(
            self,
            weights=self.weights + draft.weights,
            per_token=self.per_token + draft.per_token,
            per_token_in_8_bits=self.per_token_in_8_bits + draft.per_token_in_8_bits,
        )

    def kv_cache_size(self, num_tokens: int, cache_type: str = "fp32") -> int:
        """Return the KV cache size in bytes for a sequence of `num_tokens` tokens, or for a sequence of the model's
        context length if that is shorter.

        `cache_type` is a value of the setting `kv_cache_type`, such as "fp16". The size for "auto" is that for "fp32".
        """
        narrow = {"fp16": self.per_token // 2, "int8": self.per_token_in_8_bits}
        return narrow.get(cache_type, self.per_token) * min(num_tokens, self.context_length)


def advice_for_context(max_length: int, context_length: int) -> str:
    """Return advice to the operator if `max_length`, the maximum number of tokens of a request for which there is
    memory, is too small for coding agents although the model's context (`context_length` tokens) is longer; otherwise
    "".
    """
    if max_length >= min(context_length, AGENT_TOKENS):
        return ""
    return (
        f"coding agents such as Claude Code need about {AGENT_TOKENS} tokens: free some memory, set "
        "GENAI_KV_CACHE_TYPE to fp16 or int8, or use a smaller model"
    )


def read_model_memory(directory: Path) -> ModelMemory:
    """Estimate the memory of the model in a directory from its files, and return the estimate.

    Files that cannot be read count as missing, because loading the model reports them.
    """
    try:
        config = read_object(directory / GENAI_CONFIG)
        pools = task_of(directory).pools
        model = config.get("model") or {}
        names = [graph_of(directory)] if pools else sorted(set(_graphs(model)))
        shared = _shared_with_head(directory, model)
    except (GenaiServerError, LookupError, TypeError, ValueError, AttributeError, OSError):
        return ModelMemory()
    graphs = [directory / name for name in names]
    size = sum(map(_size_with_weights, graphs)) + shared
    memory = ModelMemory() if pools else _kv_cache_memory(config)
    return replace(memory, weights=int(LOADED * size))


def _graphs(config: Any) -> list[str]:
    """Return the file names of all ONNX graphs that genai_config.json names. `config` is the parsed file or a part of
    it; names are found at any depth.
    """
    if isinstance(config, list):
        return [name for value in config for name in _graphs(value)]
    if not isinstance(config, dict):
        return []
    filename = config.get("filename")
    named = (
        [filename]
        if isinstance(filename, str)
        and filename.endswith(".onnx")
        and ".." not in filename
        and filename[0] not in "/\\"
        else []
    )
    return named + [name for value in config.values() for name in _graphs(value)]


def _size_with_weights(graph: Path) -> int:
    """Return the total size in bytes of a graph file and of the files next to it whose names begin with its name, such
    as model.onnx.data, which has the weights. Adapters are left out. 0 if the files cannot be read.
    """
    try:
        return sum(path.stat().st_size for path in graph.parent.glob(f"{graph.name}*") if "adapter" not in path.suffix)
    except OSError:
        return 0


def _shared_with_head(directory: Path, model: dict[str, Any]) -> int:
    """Return the size in bytes of the second copy of the output matrix in memory, which a head for multi-token
    prediction (MTP) causes if it uses the matrix from the decoder's file; 0 if the model has no such head.

    `model` is the section `model` of genai_config.json. The size is an upper bound.
    """
    head = _graphs(model.get(_HEAD))
    if not head or not _mentions(directory / head[0], f"{model['decoder']['filename']}.data".encode()):
        return 0
    bytes_each = 1 if _mentions(directory / head[0], _FOUR_BITS) else 4
    return int(model["vocab_size"]) * int(model["decoder"]["hidden_size"]) * bytes_each


def _mentions(graph: Path, name: bytes) -> bool:
    """Return whether a graph file contains the bytes `name`, such as the name of a file with weights. False for a file
    of more than _MAX_GRAPH_BYTES, which contains the weights themselves, and for one that cannot be read.
    """
    try:  # reading from a pipe would block
        return graph.is_file() and graph.stat().st_size <= _MAX_GRAPH_BYTES and name in graph.read_bytes()
    except OSError:
        return False


def _kv_cache_memory(config: dict[str, Any]) -> ModelMemory:
    """Return the KV cache sizes of one token and the model's context length, from `config`, the contents of
    genai_config.json. The size of the weights in the result is 0.

    All values are 0 if the configuration lacks the necessary numbers.
    """
    try:
        model = config["model"]
        decoder = model["decoder"]
        layers, heads, size = (int(decoder[k]) for k in ("num_hidden_layers", "num_key_value_heads", "head_size"))
        values, scale = 2 * layers * heads, 4
        return ModelMemory(0, values * size * 4, int(model["context_length"]), values * (size + scale))
    except (LookupError, TypeError, ValueError):
        return ModelMemory()
