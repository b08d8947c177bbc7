"""Which runners an engine has: decided by the settings, the device and the model's graph, and loaded.

What imports ONNX Runtime is imported in the functions, for a scripted device does without it.
"""

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from genai_server.engine.decoder_graph import DoesNotFit, read_decoder_graph
from genai_server.engine.memory import free_memory
from genai_server.engine.model_files import is_paged, session_profile
from genai_server.engine.profiling import ProfileFolder
from genai_server.engine.runners.pair import RunnerPair
from genai_server.engine.runners.scripted import ScriptedRunner
from genai_server.errors import ConfigurationError, RunnerFailed
from genai_server.generation import ModelInfo
from genai_server.messages.launch import EngineSpec
from genai_server.options.device import unreachable
from genai_server.options.providers import CPU
from genai_server.options.table import Reach

if TYPE_CHECKING:
    from genai_server.engine.runners.batched import BatchedRunner

log = logging.getLogger(__name__)
_LIBRARY = "requests run in onnxruntime-genai's own batch"


def load_runners(spec: EngineSpec) -> RunnerPair:
    """The runners for a device. Raises what the library raises when it cannot load the model."""
    if spec.device.startswith("scripted"):
        return RunnerPair(ScriptedRunner(), reason="it is scripted")
    from genai_server.engine.prepacked import prepacked_model
    from genai_server.engine.runners.generator import GeneratorRunner
    from genai_server.engine.session_options import use_global_pool, with_found_libraries

    for warning in spec.options.warnings:
        log.warning("%s", warning)
    if (why := _never_batched(spec)) is not None:
        if spec.scheduler == "batched":
            raise ConfigurationError(f"GENAI_SCHEDULER=batched: {why}")
        _check_reach(spec, Reach.GENERATOR, why)
    model_dir = Path(spec.model_dir)
    spec = structs.replace(spec, options=with_found_libraries(spec.options, model_dir))
    use_global_pool(spec.options, spec.threads)
    if _on_cpu(spec):
        model_dir = prepacked_model(model_dir, Path(spec.cache_dir) if spec.cache_dir else None, spec.options)
    generator = GeneratorRunner(
        model_dir, spec.device, spec.threads, spec.options, profile_prefix=_session_profile(spec)
    )
    if runs_by_library(spec):
        from genai_server.engine.runners.library_batch import LibraryBatch

        log.info("device %s: %s", spec.device, _LIBRARY)
        return RunnerPair(generator, LibraryBatch(generator, spec.max_batch_size), nodes=generator.nodes)
    try:
        batched = load_batched(spec, model_dir, generator.model)
    except DoesNotFit as reason:
        if spec.scheduler == "batched":
            raise ConfigurationError(f"GENAI_SCHEDULER=batched: {reason}") from None
        _check_reach(spec, Reach.GENERATOR, str(reason))
        log.info("device %s runs requests one by one, not in a batch: %s", spec.device, reason)
        log.info("the graph is on %s, each taking what the one before it leaves", ", ".join(generator.nodes))
        return RunnerPair(generator, reason=str(reason), nodes=generator.nodes)
    _check_reach(spec, Reach.BATCHED, "requests run in a batch")
    nodes = batched.nodes
    log.info("nodes of the graph: %s", ", ".join(f"{count} on {name}" for name, count in nodes.items()))
    return RunnerPair(generator, batched, nodes=nodes)


def _check_reach(spec: EngineSpec, runner: Reach, why: str) -> None:
    """Refuse an option that the runner in use would not get. Raises ConfigurationError."""
    if found := unreachable(spec.options, runner):
        raise ConfigurationError(f"{found}, which device {spec.device} does not run on: {why}")


def _never_batched(spec: EngineSpec) -> str | None:
    """Why no model runs in a batch here, as far as the settings tell."""
    from genai_server.engine.runners.buffers import MEMORY

    if spec.scheduler == "generator":
        return "GENAI_SCHEDULER is generator"
    if runs_by_library(spec):
        return _LIBRARY
    kind = spec.device.partition(":")[0]
    if kind not in MEMORY:
        return f"a batch runs on {', '.join(MEMORY)}, not on {kind}"
    if kind != CPU and spec.scheduler != "batched":
        return f"a batch on {kind} was never tried on its hardware, and runs with GENAI_SCHEDULER=batched only"
    if kind != CPU and not spec.kv_cache_bytes:
        return f"what is free of the memory of {spec.device} is not known, so GENAI_KV_CACHE_BYTES must be given"
    return None


def runs_by_library(spec: EngineSpec) -> bool:
    """Whether requests run in onnxruntime-genai's own batch."""
    if spec.device.startswith("scripted"):
        return False
    return spec.scheduler == "library" or (spec.scheduler == "auto" and is_paged(Path(spec.model_dir)))


def _on_cpu(spec: EngineSpec) -> bool:
    return spec.device.partition(":")[0] == CPU


def load_batched(spec: EngineSpec, model_dir: Path, model: ModelInfo) -> "BatchedRunner":
    """The batched runner. Raises DoesNotFit if it is not wanted or cannot run the model."""
    from genai_server.engine.decoder_session import open_session
    from genai_server.engine.runners.batched import BatchedRunner, BatchLimits
    from genai_server.engine.runners.buffers import buffers_on

    if (why := _never_batched(spec)) is not None:
        raise DoesNotFit(why)
    graph = read_decoder_graph(model_dir)
    max_length = min(spec.max_length, model.context_length)
    if graph.switches_at is not None and max_length > graph.switches_at:
        raise DoesNotFit(
            f"its rope changes for a whole batch as soon as one row has more than {graph.switches_at} tokens, and "
            f"GENAI_MAX_LENGTH allows {max_length}"
        )
    slot_bytes = graph.bytes_per_token * graph.slot_length(max_length)
    allowed = spec.kv_cache_bytes or free_memory() // 2
    # A device's memory is taken at once, with a row to swap two others.
    num_slots = min(spec.max_batch_size, allowed // slot_bytes - (0 if _on_cpu(spec) else 1))
    source = "GENAI_KV_CACHE_BYTES" if spec.kv_cache_bytes else "half of the memory that is free"
    need = f"keys and values of {max_length} tokens (GENAI_MAX_LENGTH) need {slot_bytes} bytes, {source} is {allowed}"
    if num_slots < 1:
        raise DoesNotFit(need)
    if num_slots < spec.max_batch_size:
        log.warning("%d requests run at once, not %d (GENAI_MAX_BATCH_SIZE): %s", num_slots, spec.max_batch_size, need)
    prefix = _session_profile(spec)
    session = open_session(
        graph,
        spec.threads,
        optimized=model_dir != Path(spec.model_dir),
        offers_best=not _on_cpu(spec),
        options=spec.options,
        profile_prefix=f"{prefix}_batch" if prefix else "",
    )
    try:
        return BatchedRunner(
            graph,
            session,
            model,
            BatchLimits(num_slots, max_length),
            run_entries=spec.options.run,
            make_buffers=buffers_on(spec.device, spec.options),
        )
    except RunnerFailed as error:
        raise DoesNotFit(f"its first pass in a batch failed: {error.message}") from error


def profile_folder(spec: EngineSpec) -> ProfileFolder:
    """Where the operator has profiles written."""
    return ProfileFolder(
        Path(spec.profile_dir),
        spec.profile_folder or spec.device,
        max_files=spec.profile_max_files,
        max_bytes=spec.profile_max_bytes,
        max_age=spec.profile_max_age,
    )


def _session_profile(spec: EngineSpec) -> str:
    """The path prefix for profiles of the whole session, if the model's configuration wants some: its name for them, in
    the operator's folder. Raises OSError without the folder.
    """
    name = session_profile(Path(spec.model_dir))
    if not name:
        return ""
    folder = profile_folder(spec)
    folder.prepare()
    return folder.path_prefix(name)
