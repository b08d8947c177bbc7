"""Measures how much memory of a GPU is left for the KV cache, beside the model's weights and what the largest forward
pass needs (`with_memory_left`).
"""

import logging
from dataclasses import replace
from typing import Any

import numpy as np
from msgspec import structs

from genai_server.engine.graph_description import DecoderGraph
from genai_server.engine.host import free_gpu_memory
from genai_server.engine.kv_cache.buffers import RowStates, buffers_on
from genai_server.engine.kv_cache.layout import Row, lay_out
from genai_server.engine.kv_cache.paged_buffers import num_blocks
from genai_server.engine.model.encoders import TokenEmbedder
from genai_server.engine.runners.batched import MAX_POSITIONS, DecoderSession
from genai_server.engine.runners.sequence_limits import DEVICE_CHUNK, IDLE_CHUNK, with_limit
from genai_server.errors import RunnerFailed
from genai_server.messages.generation_request import ModelInfo
from genai_server.messages.launch import EngineSpec
from genai_server.options.device import device_id

log = logging.getLogger(__name__)
# The share of what is left. The rest is for what later passes need in addition.
_SHARE = 0.9


def with_memory_left(spec: EngineSpec, graph: DecoderGraph, session: Any, model: ModelInfo) -> EngineSpec:
    """Return the engine's specification with a share of the free memory of its GPU as the memory for the KV cache.
    Returns `spec` unchanged if it has this memory already, for instance from the settings, or if the free memory is
    unknown.

    Before the free memory is read, a pass with the longest chunk and the most logits runs in `session`, the ONNX
    Runtime session of `graph`, because ONNX Runtime keeps the memory that passes have used. An estimate from the sizes
    of the weight files would be too high for a small GPU. Raises RunnerFailed if the pass fails, or there is no memory
    for the pass's own KV cache.
    """
    if spec.kv_cache_bytes or spec.kv_bytes:
        return spec
    length = with_limit(model, spec.max_length).max_length
    row = Row(0, 0, [0] * min(max(spec.prefill_chunk or DEVICE_CHUNK, IDLE_CHUNK), length))
    row = replace(row, num_logits=min(max(MAX_POSITIONS, spec.max_batch_size), len(row.tokens)))
    embedder = None if graph.vision is None else TokenEmbedder(graph.vision)
    decoder = DecoderSession(graph, session, adapters=None, embedder=embedder, run_entries=spec.options.run)
    make_buffers = buffers_on(spec.device, spec.options, num_blocks(graph, len(row.tokens)))
    try:
        buffers = make_buffers(graph, 1, len(row.tokens))
    except RuntimeError as error:
        raise RunnerFailed(f"no memory for keys and values: {error}") from error
    decoder.use(buffers, RowStates(graph, 1), np.empty((0, 0), graph.logits_type))
    (scores,) = decoder.scores(lay_out([row], graph))
    num_logits = len(scores.logits)  # copied from the device
    free = free_gpu_memory(device_id(spec.options))
    if free is None:
        return spec
    log.info("a pass of %d tokens and %d logits leaves %d bytes of %s", len(row.tokens), num_logits, free, spec.device)
    return structs.replace(spec, kv_bytes=max(1, int(_SHARE * free)))
