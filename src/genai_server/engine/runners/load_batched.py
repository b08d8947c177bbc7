"""Loads the runner of a batch, with the model's graph and its session.

Modules that import ONNX Runtime are imported within functions, because a scripted device works without it.
"""

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from genai_server.engine.graph_description import DecoderGraph, DoesNotFit
from genai_server.engine.model.files import session_profile
from genai_server.engine.model.graph_reader import read_cross_decoder, read_decoder_graph
from genai_server.engine.profiling.folder import profile_folder
from genai_server.engine.runners.base import Runner
from genai_server.engine.runners.runner_rules import check_reach, never_batched
from genai_server.engine.runners.sequence_limits import batch_limits, on_cpu, with_cache_type
from genai_server.errors import ConfigurationError, RunnerFailed, in_one_line
from genai_server.messages.generation_request import ModelInfo
from genai_server.messages.launch import EngineSpec
from genai_server.model_files.pooling_model import Task, task_of
from genai_server.options.table import Reach

if TYPE_CHECKING:
    from genai_server.engine.runners.batched import BatchedRunner

log = logging.getLogger(__name__)


def load_batched(spec: EngineSpec, model_dir: Path, model: ModelInfo) -> "BatchedRunner":
    """Load the runner of a batch for the model in `model_dir`. On CPUs, its weights are packed for the kernels.

    Raises DoesNotFit if the settings rule out a batch, or the model cannot run in one. Raises ConfigurationError if
    GENAI_KV_CACHE_BYTES is too small for a single request, because running without a batch would not respect that
    limit.
    """
    from genai_server.engine.model.native_library import multiplies_bf16, why_not_native
    from genai_server.engine.model.weights import native_model

    why = never_batched(spec.device, spec)
    if why is not None:
        raise DoesNotFit(why)
    is_speech_model = task_of(model_dir) is Task.TRANSCRIBE
    if on_cpu(spec):
        if (why := why_not_native(spec.options, cache_dir(spec))) is not None:
            raise DoesNotFit(why)
        if spec.attention_type == "bf16" and not multiplies_bf16(cache_dir(spec)):
            log.warning("GENAI_ATTENTION_TYPE=bf16 has no effect: this processor cannot multiply bfloat16 numbers")
        model_dir = native_model(model_dir, cache_dir(spec), spec.options)
    graph = read_cross_decoder(model_dir) if is_speech_model else read_decoder_graph(model_dir)
    if on_cpu(spec):
        graph = graph.in_32_bits()
    if graph.bytes_per_row and not on_cpu(spec):
        raise DoesNotFit("its layers have states of fixed size, which a batch keeps in the memory of a CPU only")
    return _load(spec, graph, model)


def cache_dir(spec: EngineSpec) -> Path | None:
    """Folder for packed weights; None if they are not stored.

    An engine that is bound to a NUMA node has its own copy there, because the memory of a mapped file is on one node.
    """
    if not spec.cache_dir:
        return None
    node = None if spec.cores is None else spec.cores.node
    return Path(spec.cache_dir) if node is None else Path(spec.cache_dir) / f"node-{node}"


def _load(spec: EngineSpec, graph: DecoderGraph, model: ModelInfo) -> "BatchedRunner":
    """Load the runner of a batch for a graph. Raises DoesNotFit and ConfigurationError, as `load_batched` does."""
    from genai_server.engine.kv_cache.buffers import buffers_on
    from genai_server.engine.model.session import open_session
    from genai_server.engine.runners.batched import BatchedRunner
    from genai_server.engine.runners.gpu_kv_cache_size import with_memory_left

    graph = with_cache_type(spec, graph, model.context_length)
    if on_cpu(spec):
        limits, model = batch_limits(spec, graph, model)
    prefix = session_profile_prefix(spec)
    try:
        session = open_session(
            graph,
            spec.threads,
            offers_best=not on_cpu(spec),
            options=spec.options,
            profile_prefix=f"{prefix}_batch" if prefix else "",
        )
    except (ConfigurationError, DoesNotFit):
        raise
    except Exception as error:  # ONNX Runtime's errors have no base of their own
        raise DoesNotFit(f"its graph for a batch cannot be loaded: {in_one_line(error)}") from error
    try:
        if not on_cpu(spec):
            spec = with_memory_left(spec, graph, session, model)
            limits, model = batch_limits(spec, graph, model)
        runner = BatchedRunner(
            graph,
            session,
            model,
            limits,
            rounds_prefixes=_rounds_prefixes(spec, graph),
            run_entries=spec.options.run,
            make_buffers=buffers_on(spec.device, spec.options, limits.num_slots + limits.memory.num_pages),
        )
    except RunnerFailed as error:
        raise DoesNotFit(f"its first pass in a batch failed: {error.message}") from error
    if spec.exact and (why := runner.abilities.why_not_exact):
        raise DoesNotFit(f"GENAI_EXACT is true, and in a batch {why}")
    check_reach(spec.device, spec.options, Reach.BATCHED, "requests run in a batch")
    log_nodes(runner)
    return runner


def _rounds_prefixes(spec: EngineSpec, graph: DecoderGraph) -> bool:
    """Whether prefixes are stored on disk with 16 bits, although they have 32 in memory."""
    if spec.prefix_cache_bytes == "0":
        return False
    return spec.prefix_cache_type == "fp16" and graph.cache_type == np.float32


def log_nodes(runner: Runner) -> None:
    """Log how many nodes of a model's graph each execution provider runs."""
    counts = (f"{count} on {name}" for name, count in runner.nodes.items())
    log.info("nodes of the graph: %s", ", ".join(counts))


def session_profile_prefix(spec: EngineSpec) -> str:
    """Return the path prefix for profiles of the whole session, from loading to closing; "" if the model's
    configuration does not ask for them.

    The prefix of the file name is in the model's configuration, the folder in the settings. Raises Unavailable if the
    folder cannot be written.
    """
    name = session_profile(Path(spec.model_dir))
    if not name:
        return ""
    folder = profile_folder(spec)
    folder.prepare()
    return folder.path_prefix(name)
