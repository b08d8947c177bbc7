"""Derives from the memory for the KV cache how many sequences run at once and how long they may be: in a batch
(`batch_limits`), one by one (`generator_limits`), or as texts for embeddings (`longest_text`).

The size of this memory comes from the settings; from the supervisor, the process that starts the engines of a host and
divides the host's memory among them (supervisor/kv_cache_size.py); or from a measurement on a GPU
(gpu_kv_cache_size.py).
"""

import logging
import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from msgspec import structs

from genai_server.engine.graph_description import DecoderGraph, DoesNotFit
from genai_server.engine.graph_rewriting.paged_attention import BLOCK_TOKENS
from genai_server.engine.host import free_gpu_memory
from genai_server.engine.model.files import check_model_directory
from genai_server.engine.model.graph_reader import MTP, has_head, read_decoder_graph
from genai_server.engine.scheduling.scheduler_output import UNSHARED, KvMemory
from genai_server.errors import ConfigurationError, in_one_line
from genai_server.messages.generation_request import CONTEXT, ModelInfo
from genai_server.messages.launch import EngineSpec
from genai_server.model_files.model_memory import read_model_memory
from genai_server.model_files.pooling_model import Task, task_of
from genai_server.options.device import device_id
from genai_server.options.providers import CPU
from genai_server.system.resources import free_memory

log = logging.getLogger(__name__)
# Memory for sequences of fewer tokens is not given up for running fewer of them at once.
SHORT = 2048
# Limits which the memory sets are multiples of this, if they are longer.
_ROUND = 1024
# The least limit that the memory may set.
_LEAST = 256
# The most tokens of prompts in a step that also decodes, on a device with memory of its own.
DEVICE_CHUNK = 2048
# At least as many are read in a step while no stream waits for a token.
IDLE_CHUNK = 256
# Sequences of the greatest length which the memory must hold where each has memory for that, whatever its length is.
_WHOLE = 4
# The share of the memory that a draft model gets if the models' files do not tell what a token needs.
_DRAFT_SHARE = 0.2
# The share of a GPU's memory beside the weights; the rest is for what passes compute.
_GPU_SHARE = 0.8
# The memory on a device whose free memory is unknown: that of the host says nothing about it.
_UNKNOWN_BYTES = 1024**3
# Data types of the KV cache on CPUs, by their names in the settings.
_CACHE_TYPES = {"fp32": np.float32, "fp16": np.float16, "int8": np.int8}
# State checkpoints for each slot, at most, where slots share no memory.
_CHECKPOINTS = 4


@dataclass(frozen=True)
class Allowed:
    """The number of bytes that a model's KV cache may have, and the source of this number, as `allowed` returns it."""

    bytes: int
    # The reason for the number, as a phrase for messages.
    source: str

    @property
    def in_words(self) -> str:
        """A phrase for messages that says how much memory there is for the KV cache and why, for cases in which this
        memory limits the length of sequences.
        """
        return f"memory: {self.bytes} bytes for keys and values, {self.source}"


def allowed(spec: EngineSpec) -> Allowed:
    """Return how much memory the KV cache of an engine's model may have, with the source of the number. The part of a
    draft model is subtracted.
    """
    total = _of_engine(spec)
    if not spec.draft_model:
        return total
    num_bytes = total.bytes - int(draft_share(spec) * total.bytes)
    return Allowed(num_bytes, f"{total.source} less the part of GENAI_DRAFT_MODEL")


def _of_engine(spec: EngineSpec) -> Allowed:
    if spec.kv_cache_bytes:
        return Allowed(spec.kv_cache_bytes, "GENAI_KV_CACHE_BYTES")
    if spec.kv_bytes:
        return Allowed(spec.kv_bytes, "its share of the free memory")
    if on_cpu(spec):
        return Allowed(free_memory() // 2, "half of the free memory")
    if (free := free_gpu_memory(device_id(spec.options))) is None:
        return Allowed(_UNKNOWN_BYTES, f"the default where the free memory is unknown, as that of {spec.device} is")
    remaining = free - read_model_memory(Path(spec.model_dir)).weights
    return Allowed(max(0, int(_GPU_SHARE * remaining)), f"four fifths of what the weights leave of {spec.device}")


def draft_share(spec: EngineSpec) -> float:
    """Return the part, from 0 to 1, of the memory for KV caches that the draft model in the engine's settings gets. It
    is such that the model and the draft model can hold the same number of tokens, as far as their files tell how many
    bytes a token needs.
    """
    main, draft = (read_model_memory(Path(path)).per_token for path in (spec.model_dir, spec.draft_model))
    return draft / (main + draft) if main and draft else _DRAFT_SHARE


def head_share(spec: EngineSpec) -> float:
    """Return the part, from 0 to 1, of the memory for KV caches that the model's head for multi-token prediction (a
    layer that drafts tokens) gets, so that the model and the head can hold the same number of tokens.

    Returns 0 if the model has no head, or if it is not used because of the settings, the device or too little memory.
    """
    model_dir = Path(spec.model_dir)
    is_off = spec.draft_model or spec.speculation == "off" or spec.scheduler == "generator" or not on_cpu(spec)
    if is_off or not has_head(model_dir) or task_of(model_dir) is not Task.GENERATE:
        return 0.0
    model = check_model_directory(model_dir)
    try:
        main, head = (read_decoder_graph(model_dir, part).in_32_bits() for part in ("decoder", MTP))
        share = head.bytes_per_token / (main.bytes_per_token + head.bytes_per_token)
        main_spec = with_kv_share(spec, 1 - share)
        batch_limits(main_spec, with_cache_type(main_spec, main, model.context_length), model)
    except Exception as error:  # its files may be broken in any way, and answers need no drafts
        log.warning("the model's head for multi-token prediction is not used: %s", in_one_line(error))
        return 0.0
    return share


def with_kv_share(spec: EngineSpec, share: float) -> EngineSpec:
    """Return a copy of the engine's specification with only the part `share`, from 0 to 1, of its memory for the KV
    cache.
    """
    num_bytes = max(1, int(share * _of_engine(spec).bytes))
    return structs.replace(spec, kv_cache_bytes=min(num_bytes, spec.kv_cache_bytes), kv_bytes=num_bytes)


def with_limit(model: ModelInfo, max_length: int, affordable: int | None = None, memory: str = "") -> ModelInfo:
    """Return a copy of a model's description with the maximum length of sequences, in tokens, and the reason for this
    limit.

    The limit is the model's context length, or `max_length`, the setting GENAI_MAX_LENGTH, if that is smaller; 0 means
    that it is not set. If it is not set and `affordable` is not None, the limit is at most `affordable`, the number of
    tokens for which there is memory; the text `memory` is the reason then.
    """
    limits = [(model.context_length, CONTEXT)]
    if max_length:
        limits.append((max_length, "GENAI_MAX_LENGTH"))
    elif affordable is not None:
        limits.append((affordable, memory))
    limit, limited_by = min(limits, key=lambda limit: limit[0])
    return structs.replace(model, limit=limit, limited_by=limited_by)


def with_cache_type(spec: EngineSpec, graph: DecoderGraph, context_length: int) -> DecoderGraph:
    """Return a copy of the description of a decoder's graph, with the data types of KV cache and attention that the
    settings ask for.

    In CPU memory, the KV cache has the data type in the settings. By default this is fp32, or fp16 if there is not
    enough memory for the longest requests, which have `context_length` tokens or the maximum in the settings. On a
    device with memory of its own, the KV cache has 16 bits and is stored in blocks.
    """
    wanted = spec.kv_cache_type
    if not on_cpu(spec):
        if wanted == "int8":
            log.warning("GENAI_KV_CACHE_TYPE=int8 has no effect on %s: the KV cache there is in fp16", spec.device)
        return replace(graph, cache_type=np.float16, block_tokens=BLOCK_TOKENS)
    graph = replace(graph, has_bf16_attention=spec.attention_type == "bf16")
    if wanted == "auto":
        rows, length = (spec.max_batch_size, spec.max_length) if spec.max_length else (1, context_length)
        needed = rows * min(length, context_length) * graph.bytes_per_token
        wanted = "fp16" if needed > allowed(spec).bytes else "fp32"
        log.info("keys and values have the type %s: %d of the longest requests need %d bytes", wanted, rows, needed)
    return replace(graph, cache_type=_CACHE_TYPES[wanted])


@dataclass(frozen=True)
class BatchLimits:
    """How large a batch is: the number of KV cache slots, the maximum length of a sequence in tokens, and the memory
    that the slots share. `batch_limits` derives it, and the runner of the batch allocates the KV cache by it.
    """

    # Number of sequences that can run at once.
    num_slots: int
    # Maximum number of tokens of a sequence.
    max_length: int
    # The memory that the slots share.
    memory: KvMemory = UNSHARED


def on_cpu(spec: EngineSpec) -> bool:
    """Whether the device of an engine is the CPU, so that its model runs in the host's memory."""
    return spec.device.partition(":")[0] == CPU


def batch_limits(spec: EngineSpec, graph: DecoderGraph, model: ModelInfo) -> tuple[BatchLimits, ModelInfo]:
    """Derive the limits of a batch from the memory for the KV cache. Returns them, and a copy of the model's
    description with the maximum length of its sequences.

    `graph` says how many bytes a token needs. Raises ConfigurationError if GENAI_KV_CACHE_BYTES is too small for a
    single sequence. Raises DoesNotFit if the memory is too small, and this setting does not define it.
    """
    from genai_server.engine.kv_cache.buffers import can_reserve, padding_bytes, page_tokens

    memory = allowed(spec)
    max_slots = spec.max_batch_size
    wanted = with_limit(model, spec.max_length).max_length
    shares = graph.block_tokens > 0 or can_reserve(graph, max_slots, wanted)
    if shares:
        tokens = graph.block_tokens or page_tokens(graph)
        row_bytes = graph.bytes_per_row + (0 if graph.block_tokens else padding_bytes(graph))
        slot_bytes = tokens * graph.bytes_per_token + row_bytes
        for_many, for_one = (_tokens_of(memory.bytes - rows * slot_bytes, graph) for rows in (max_slots, 1))
    else:
        row_bytes = graph.bytes_per_row
        for_many, for_one = (
            _tokens_of(memory.bytes // rows - row_bytes, graph) for rows in (min(max_slots, _WHOLE), 1)
        )
    affordable = max(for_many, min(SHORT, for_one))
    if affordable > _ROUND:
        affordable -= affordable % _ROUND
    model = with_limit(model, spec.max_length, max(affordable, _LEAST), memory.in_words)
    max_length = model.max_length
    tokens = tokens if shares else max_length
    page_bytes = graph.bytes_per_token * tokens
    shared = max_length // tokens if shares else 0  # pages of the longest sequence, without its slot's own
    slot_bytes = page_bytes + row_bytes
    min_bytes = shared * page_bytes + slot_bytes
    num_slots = min(max_slots, (memory.bytes - shared * page_bytes) // slot_bytes)
    contents = "keys, values and states" if graph.bytes_per_row else "keys and values"
    need = f"{contents} of {max_length} tokens ({model.limited_by}) need {min_bytes} bytes"
    if num_slots < 1 and spec.kv_cache_bytes:
        raise ConfigurationError(
            f"GENAI_KV_CACHE_BYTES={memory.bytes}: at least {min_bytes} are needed for a request: {need}"
        )
    need += f", {memory.source} is {memory.bytes}"
    if num_slots < 1:
        raise DoesNotFit(need)
    if not shared:
        if num_slots < max_slots:
            log.warning("%d requests run at once, not %d (GENAI_MAX_BATCH_SIZE): %s", num_slots, max_slots, need)
        own_bytes = num_slots * slot_bytes
        if not graph.has_states:
            return BatchLimits(num_slots, max_length, KvMemory(UNSHARED.page_tokens, 0, own_bytes=own_bytes)), model
        num_checkpoints = min(_CHECKPOINTS * num_slots, (memory.bytes - own_bytes) // graph.bytes_per_row)
        own_bytes += num_checkpoints * graph.bytes_per_row
        checkpoints = KvMemory(UNSHARED.page_tokens, num_checkpoints, checkpoint_pages=1, own_bytes=own_bytes)
        return BatchLimits(num_slots, max_length, checkpoints), model
    checkpoint_pages = -(-graph.bytes_per_row // page_bytes) if graph.has_states else 0
    pages = KvMemory(
        tokens,
        (memory.bytes - num_slots * slot_bytes) // page_bytes,
        checkpoint_pages,
        page_bytes=page_bytes,
        own_bytes=num_slots * slot_bytes,
        min_pages=shared,
        max_pages=num_slots * (shared + _CHECKPOINTS * checkpoint_pages),
    )
    assert pages.pages(max_length) <= pages.num_pages  # else a request would wait for ever
    if (longest := pages.num_pages // shared) < max_slots:
        log.info("%d of the longest requests run at once, and up to %d shorter ones: %s", longest, num_slots, need)
    return BatchLimits(num_slots, max_length, pages), model


def generator_limits(spec: EngineSpec, model_dir: Path, model: ModelInfo) -> tuple[KvMemory, ModelInfo]:
    """Derive the limits of sequences that run one by one, each on an `og.Generator` of onnxruntime-genai. Returns the
    memory that they share, in pages of one token, and a copy of the model's description with the maximum length of its
    sequences.

    In CPU memory, the memory for the KV cache limits the number of tokens. On other devices the free memory is unknown,
    and all sequences together may have as many tokens as a full batch of short ones.
    """
    memory = allowed(spec)
    affordable, words = spec.max_batch_size * SHORT, f"memory: {spec.max_batch_size} times {SHORT} tokens"
    per_token = read_model_memory(model_dir).per_token if on_cpu(spec) else 0
    if per_token:
        affordable, words = max(_LEAST, memory.bytes // per_token), memory.in_words
    model = with_limit(model, spec.max_length, affordable, words)
    longest = model.max_length
    pages = KvMemory(
        1,
        max(affordable, longest),
        page_bytes=per_token,
        min_pages=longest,
        max_pages=spec.max_batch_size * longest,
    )
    return pages, model


def longest_text(spec: EngineSpec, model: ModelInfo, num_heads: int) -> ModelInfo:
    """Return a copy of the description of a model for embeddings or reranking, with the maximum length of a text in
    tokens, for which attention has enough memory.

    Attention may need three 32-bit numbers for each pair of tokens of a text, in each of the `num_heads` heads.
    """
    memory = allowed(spec)
    affordable = max(SHORT, math.isqrt(memory.bytes // (3 * 4 * (num_heads or 1))))
    return with_limit(
        model, spec.max_length, affordable, f"memory: {memory.bytes} bytes for attention, {memory.source}"
    )


def _tokens_of(num_bytes: int, graph: DecoderGraph) -> int:
    return max(0, num_bytes) // graph.bytes_per_token
