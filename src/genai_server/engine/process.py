"""The main program of an engine process, which loads one model on one device and runs requests with it (`main`). The
supervisor, the process that starts engines and restarts them, starts it.

The supervisor and the engine exchange the messages of messages/launch.py over the engine's standard streams. API
processes, which serve HTTP clients, connect to the engine by a socket.
"""

import logging
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from genai_server.engine.api_connections import Connections, Listener, listen
from genai_server.engine.host import restrict_to_cores
from genai_server.engine.kv_cache.kv_events import CachedBlocks, KvEventPublisher, prefix_digest
from genai_server.engine.loop import EngineLoop
from genai_server.engine.model.files import CONFIG, session_profile
from genai_server.engine.profiling.profile_files import profile_folder, session_template
from genai_server.engine.profiling.runtime_options import RuntimeOptionState
from genai_server.engine.runners.base import Runner
from genai_server.engine.runners.load_model import load_model
from genai_server.engine.runners.loaded_model import LoadedModel, RunnerPair, scores_prompts, warm_up
from genai_server.engine.runners.sequence_limits import DEVICE_CHUNK, IDLE_CHUNK, on_cpu
from genai_server.engine.sampling.grammar import Guidance, bytes_guidance, model_guidance
from genai_server.engine.scheduling.drafts import AnswerMemory
from genai_server.engine.scheduling.scheduler import PoolingScheduler, Scheduler
from genai_server.engine.scheduling.scheduler_output import StepPolicy
from genai_server.engine.supervisor_link import Heartbeat, SupervisorLink
from genai_server.errors import in_one_line
from genai_server.logs import configure_logging
from genai_server.messages.generation_request import ModelInfo
from genai_server.messages.launch import EngineLaunch, EngineReport, EngineSpec, Resize
from genai_server.messages.server_status import EngineCores
from genai_server.model_files.model_memory import advice_for_context
from genai_server.model_files.pooling_model import Task, task_of
from genai_server.options.providers import is_scripted
from genai_server.system.processes import ignore_group_signals
from genai_server.system.resources import freeze_existing_objects, in_ranges

if TYPE_CHECKING:
    from genai_server.engine.disk_cache import DiskCache

log = logging.getLogger(__name__)
# The most in one step that also decodes, on the cores of a CPU; and the least that may be set.
_HOST_CHUNK, _MIN_CHUNK = 128, 2


def main() -> None:
    """Run the engine process until the supervisor (the process that started it) exits or asks it to exit. It receives
    its settings over standard input.

    This function does not return. If the model cannot be loaded, it sends the supervisor a report with the error, and
    the process exits with status 1.
    """
    link = SupervisorLink()
    ignore_group_signals()
    launch = link.launch()
    spec = launch.spec
    configure_logging(spec.log_level, spec.log_format)
    if spec.telemetry:
        # Imported here: it imports all settings, which takes a quarter of the start of an engine without a model.
        from genai_server.config.environment import allow_telemetry

        allow_telemetry()
    if spec.cores is not None:
        restrict_to_cores(spec.cores)
    try:
        listener = listen(launch.address)  # first, because a wrong address shows without the model
        loaded = load_model(spec)
        for adapter in spec.adapters:
            loaded.adapters.load(adapter)
        model = structs.replace(loaded.main.model, scores_prompts=False)
        _report_context(spec, model)
        # The tokenizer is read next to the passes of the warm-up.
        guidance_loader = ThreadPoolExecutor(1)
        loading = guidance_loader.submit(load_guidance, spec, model)
        if not loaded.main.abilities.pools:
            loaded.kv_events = publisher(spec, loaded.main)
            if spec.reports_prefixes and loaded.main.slots is not None:
                loaded.cached_blocks = CachedBlocks(loaded.main.slots.slots, prefix_digest)
            warm_up(loaded, prefill_chunk(spec, loaded.main))
            model = structs.replace(model, scores_prompts=scores_prompts(loaded))
            loaded.disk_cache = disk_cache(spec, loaded.main)
        guidance = loading.result()
        guidance_loader.shutdown()
    except BaseException as error:  # the operator must see any error of the library, including SystemExit and panics
        link.keeps_folder = True
        link.send(EngineReport(error=in_one_line(error)))
        os._exit(1)  # sys.exit would wait for the thread that reads standard input
    try:
        serve(launch, listener, loaded, model, guidance, link)
    except BaseException:
        log.exception("internal error in the engine; it exits")
        os._exit(1)
    os._exit(0)


def serve(
    launch: EngineLaunch,
    listener: Listener,
    loaded: LoadedModel,
    model: ModelInfo,
    guidance: Guidance,
    link: SupervisorLink,
) -> None:
    """Accept connections of API processes and run the engine's loop until the process is told to end.

    `launch` is the supervisor's description of the engine, `listener` the socket for API processes, `loaded` the loaded
    model, `model` the description of the model that API processes receive, `guidance` has the grammars, and `link` is
    the connection to the supervisor. The model is closed at the end only if its whole session is profiled, because ONNX
    Runtime then writes the profile; otherwise closing would only take time.
    """
    spec = launch.spec
    speculates = spec.speculation == "auto" and loaded.main.abilities.drafts
    batching = structs.replace(loaded.batching, speculates=speculates)
    connections = Connections(listener, launch.secret, model, batching)
    profiles = profile_folder(spec)
    profiles.remove_old()
    runners = RunnerPair(loaded)
    options = RuntimeOptionState(
        runners,
        profiles,
        kept=launch.kept,
        keep=link.send,
        max_rows=spec.profile_max_rows,
        about=session_template(spec.device, Path(spec.model_dir), spec.threads, spec.options),
    )
    loop = EngineLoop(
        runners,
        make_scheduler(spec, loaded, speculates=speculates),
        options,
        guidance,
        connections.send,
        heartbeat=Heartbeat(link.send),
    )
    connections.start(loop.inbox, loop.interrupts.ask)
    if not is_scripted(spec.device) and (name := session_profile(Path(spec.model_dir))):
        log.warning("all steps are profiled, as %s requests, into %s", spec.model_dir, profiles.path_prefix(name))
        link.close = loop.leave
        # ONNX Runtime writes no profiles of single runs then, and reports no error.
        loaded.why_no_profile = (
            "answers cannot be profiled: the entire session is profiled, because the decoder's session_options in "
            f"{Path(spec.model_dir) / CONFIG} contain enable_profiling; remove that key to profile single answers"
        )
    freeze_existing_objects()
    link.on_resize = lambda num_bytes: loop.inbox.put((0, Resize(num_bytes)))
    link.send(load_report(spec, loaded, listener.address))
    loop.run_forever()
    for runner in {loaded.generator, loaded.main}:
        runner.end_session()


def load_report(spec: EngineSpec, loaded: LoadedModel, address: str) -> EngineReport:
    """Return the report for the supervisor that the engine has loaded its model and listens at `address`. It has the
    context length, the possible sizes of the KV cache in bytes, and the cores in use.
    """
    model = loaded.main.model
    min_bytes, max_bytes = loaded.kv_range if on_cpu(spec) else (0, 0)
    if spec.kv_cache_bytes:  # set by the operator
        min_bytes = max_bytes = min(max_bytes, spec.kv_cache_bytes)
    return EngineReport(
        address,
        "",
        model.max_length,
        model.limited_by,
        min_bytes,
        max(min_bytes, max_bytes),
        cores=cores_in_use(spec),
    )


def cores_in_use(spec: EngineSpec) -> EngineCores | None:
    """Return the CPUs, number of threads and NUMA node that the engine uses; None if it does not run on the CPU, or not
    on Linux.
    """
    if sys.platform == "linux" and on_cpu(spec):
        from genai_server.engine.model.session_options import num_threads

        cpus, planned = in_ranges(os.sched_getaffinity(0)), spec.cores
        node = planned.node if planned is not None and planned.cpus == cpus else None
        return EngineCores(cpus, num_threads(spec.options, spec.threads), node)
    return None


def _report_context(spec: EngineSpec, model: ModelInfo) -> None:
    """Log a warning if sequences can have fewer tokens than the model's context for lack of memory. Nothing is logged
    if the operator has set the limit.
    """
    if spec.max_length or model.max_length >= model.context_length:
        return
    advice = advice_for_context(model.max_length, model.context_length)
    log.warning(
        "context %d tokens of the model's %d (%s)%s",
        model.max_length,
        model.context_length,
        model.limited_by,
        advice and f"; {advice}",
    )


def prefill_chunk(spec: EngineSpec, runner: Runner) -> int:
    """Return the maximum number of prompt tokens that a step may read if it also decodes, by the settings or, without a
    setting, by whether the runner uses the host's cores.
    """
    configured = spec.prefill_chunk
    return (
        max(_MIN_CHUNK, configured) if configured else _HOST_CHUNK if runner.abilities.uses_host_cores else DEVICE_CHUNK
    )


def make_scheduler(spec: EngineSpec, loaded: LoadedModel, *, speculates: bool = False) -> Scheduler:
    """Return a new scheduler for an engine, with the settings in `spec`. As many sequences can run at once as there are
    KV cache slots, or as the settings allow if the runner has no fixed number of slots.

    `speculates` says whether steps may read drafts (speculative decoding).
    """
    runner, can = loaded.main, loaded.main.abilities
    chunk = prefill_chunk(spec, runner)
    max_running = loaded.batching.num_slots or spec.max_batch_size
    is_smaller = max_running < spec.max_batch_size
    limited_by = "GENAI_KV_CACHE_BYTES" if is_smaller else "GENAI_MAX_BATCH_SIZE"
    num_bytes = spec.draft_memory_bytes if speculates else 0
    answers = AnswerMemory(num_bytes) if num_bytes else None
    return (PoolingScheduler if can.pools else Scheduler)(
        runner,
        max_running=max_running,
        max_waiting=spec.max_queue,
        max_waiting_tokens=spec.max_queue_tokens,
        prefill_chunk=chunk,
        idle_chunk=max(IDLE_CHUNK, chunk),
        policy=StepPolicy(spec.itl_target, can.memory, speculates, limited_by, answers),
    )


def publisher(spec: EngineSpec, runner: Runner) -> KvEventPublisher | None:
    """Return the object that publishes events about the runner's prefix cache for routers; None if the settings do not
    ask for it. Also None, with a warning, if the runner has no prefix cache.

    Raises ConfigurationError if the configured address cannot be used.
    """
    if spec.kv_events is None:
        return None
    if runner.slots is None:
        name = runner.abilities.name
        log.warning("GENAI_KV_EVENTS has no effect: this model has no prefix cache (%s)", name)
        return None
    return KvEventPublisher(spec.kv_events, runner.slots.slots)


def disk_cache(spec: EngineSpec, runner: Runner) -> "DiskCache | None":
    """Open the prefix cache on disk for `runner`, and return it. Returns None if the settings do not ask for it, or if
    it cannot be used.
    """
    if spec.prefix_cache_bytes == "0" or is_scripted(spec.device):
        return None
    from genai_server.engine.disk_cache import open_disk_cache

    return open_disk_cache(spec, runner)


def load_guidance(spec: EngineSpec, model: ModelInfo) -> Guidance:
    """Load what is needed to follow grammars with the model's tokenizer, and return it.

    For a model that does not generate text, the result refuses all grammars.
    """
    if (task := task_of(Path(spec.model_dir))) is not Task.GENERATE:
        why = "it transcribes" if task is Task.TRANSCRIBE else "it returns vectors or scores"
        return Guidance(None, model.vocab_size, why)
    return bytes_guidance(model) if is_scripted(spec.device) else model_guidance(Path(spec.model_dir), model)


if __name__ == "__main__":
    main()
