"""The engine process: started by its supervisor, it loads one model on one device and runs the generator worker.

Its standard input brings one line, the EngineSpec, and then stays open for as long as the supervisor lives: its end is
the order to leave, which reaches the process however the supervisor died. Its standard output carries one line, the
EngineReport.
"""

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import msgspec
from msgspec import structs

from genai_server.engine.connections import Connections, Listener, listen
from genai_server.engine.decoder_graph import DoesNotFit, read_decoder_graph
from genai_server.engine.guidance import Guidance, bytes_guidance, model_guidance
from genai_server.engine.lifeline import Lifeline, ignore_group_signals
from genai_server.engine.loop import EngineLoop
from genai_server.engine.memory import free_memory
from genai_server.engine.model_files import is_paged, session_profile
from genai_server.engine.profile_manifest import about_engine
from genai_server.engine.profiling import ProfileFolder
from genai_server.engine.runners.pair import RunnerPair
from genai_server.engine.runners.scripted import ScriptedRunner
from genai_server.engine.runtime_options import RuntimeOptionState
from genai_server.engine.scheduler import Scheduler
from genai_server.engine.warm_up import scores_prompts, warm_up
from genai_server.engine.wire import Wire
from genai_server.errors import ConfigurationError, RunnerFailed
from genai_server.garbage import spare_what_is_there
from genai_server.generation import ModelInfo
from genai_server.heartbeat import Heartbeat
from genai_server.logs import configure_logging
from genai_server.messages.launch import EngineReport, EngineSpec
from genai_server.options.device import unreachable
from genai_server.options.providers import CPU
from genai_server.options.table import Reach

if TYPE_CHECKING:
    from genai_server.engine.runners.batched import BatchedRunner

log = logging.getLogger(__name__)
_LIBRARY = "requests run in onnxruntime-genai's own batch"
# Prompt tokens read at once while nobody waits for a token.
IDLE_CHUNK = 256


def main() -> None:
    """Serve until the supervisor leaves."""
    report = _private_standard_output()
    ignore_group_signals()
    spec = msgspec.json.decode(sys.stdin.buffer.readline(), type=EngineSpec)
    lifeline = Lifeline(Path(spec.state_file).parent)
    lifeline.hold()
    configure_logging(spec.log_level, spec.log_format)
    try:
        listener = listen(spec.address)  # first, for what is wrong with the address is known without the model
        runners = load_runners(spec)
        for adapter in spec.adapters:
            runners.adapters.load(adapter)
        warm_up(runners, spec.prefill_chunk, spec.max_length)
        model = structs.replace(runners.model, scores_prompts=scores_prompts(runners, spec.max_length))
        guidance = load_guidance(spec, model)
    except Exception as error:  # whatever the library raises: the operator must read it
        lifeline.let_go()
        _tell(report, EngineReport(error=f"{type(error).__name__}: {error}".removeprefix("RuntimeError: ")))
        os._exit(1)  # not sys.exit: the thread that reads standard input cannot be ended
    try:
        serve(spec, listener, runners, model, guidance, report, lifeline)
    except BaseException:
        log.exception("the engine met an internal error and ends")
        os._exit(1)
    os._exit(0)


def serve(
    spec: EngineSpec,
    listener: Listener,
    runners: RunnerPair,
    model: ModelInfo,
    guidance: Guidance,
    report: BinaryIO,
    lifeline: Lifeline,
) -> None:
    """Take connections, tell them of the model, and run the generator worker, until the process ends.

    Only a model whose whole session is profiled has it end, which is when its file is written; else that takes time.
    """
    connections = Connections(listener, spec.secret, model, runners.batching, runners.interrupt)
    profiles = _profile_folder(spec)
    profiles.remove_old()
    options = RuntimeOptionState(
        runners,
        profiles,
        state_file=Path(spec.state_file),
        max_rows=spec.profile_max_rows,
        about=about_engine(spec.device, Path(spec.model_dir), spec.threads, spec.options),
    )
    loop = EngineLoop(
        runners,
        make_scheduler(spec, runners.batching.num_slots or spec.max_batch_size),
        options,
        guidance,
        Wire(connections.inbox, connections.send),
        heartbeat=Heartbeat(Path(spec.heartbeat_file)),
    )
    connections.start()
    if not spec.device.startswith("scripted") and (name := session_profile(Path(spec.model_dir))):
        log.warning("all passes are profiled, as %s wants it, into %s", spec.model_dir, profiles.path_prefix(name))
        lifeline.before_leaving(loop.leave)
    spare_what_is_there()
    _tell(report, EngineReport(address=listener.address))
    loop.run_forever()
    runners.end_sessions()


def _profile_folder(spec: EngineSpec) -> ProfileFolder:
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
    folder = _profile_folder(spec)
    folder.prepare()
    return folder.path_prefix(name)


def make_scheduler(spec: EngineSpec, max_running: int) -> Scheduler:
    """The scheduler for as many running sequences as the runners have room for."""
    limited_by = "the batch of onnxruntime-genai" if _by_library(spec) else "GENAI_KV_CACHE_BYTES"
    return Scheduler(
        max_running=max_running,
        max_waiting=spec.max_queue,
        max_waiting_tokens=spec.max_queue_tokens,
        prefill_chunk=spec.prefill_chunk,
        idle_chunk=IDLE_CHUNK,
        limited_by="GENAI_MAX_BATCH_SIZE" if max_running == spec.max_batch_size else limited_by,
    )


def load_runners(spec: EngineSpec) -> RunnerPair:
    """The runners for a device. Raises what the library raises when it cannot load the model.

    What imports ONNX Runtime is imported in the functions, for a scripted device does without it.
    """
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
    if _by_library(spec):
        from genai_server.engine.runners.library_batch import LibraryBatch

        _check_reach(spec, Reach.GENERATOR, _LIBRARY)
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
    if _by_library(spec):
        return _LIBRARY
    kind = spec.device.partition(":")[0]
    if kind not in MEMORY:
        return f"a batch runs on {', '.join(MEMORY)}, not on {kind}"
    if kind != CPU and spec.scheduler != "batched":
        return f"a batch on {kind} was never tried on its hardware, and runs with GENAI_SCHEDULER=batched only"
    if kind != CPU and not spec.kv_cache_bytes:
        return f"what is free of the memory of {spec.device} is not known, so GENAI_KV_CACHE_BYTES must be given"
    return None


def _by_library(spec: EngineSpec) -> bool:
    if spec.device.startswith("scripted"):
        return False
    return spec.scheduler == "library" or (spec.scheduler == "auto" and is_paged(Path(spec.model_dir)))


def _on_cpu(spec: EngineSpec) -> bool:
    return spec.device.partition(":")[0] == CPU


def load_guidance(spec: EngineSpec, model: ModelInfo) -> Guidance:
    """What the device's answers can be guided with."""
    return bytes_guidance(model) if spec.device.startswith("scripted") else model_guidance(Path(spec.model_dir), model)


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


def _private_standard_output() -> BinaryIO:
    """Keep standard output for the report alone: native libraries print to it what they like."""
    report = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return report


def _tell(report: BinaryIO, what: EngineReport) -> None:
    report.write(msgspec.json.encode(what) + b"\n")
    report.flush()


if __name__ == "__main__":
    main()
