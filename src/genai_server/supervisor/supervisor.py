"""The supervisor of one server (`Supervisor`): it starts the engines of the server's models, restarts them, gives them
processor cores of their own, and publishes their status to the API processes.

The supervisor uses only threads, so that it can run in a process of its own, shared by all API processes of a server,
or within `genai-server doctor`. API processes find its socket in a folder that only the server's user can enter.
"""

import logging
import math
import secrets
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from urllib.parse import quote

from msgspec import structs

from genai_server.config.settings import Settings
from genai_server.config.sources import device_options, engine_spec
from genai_server.config.tool_servers import tool_servers
from genai_server.errors import ConfigurationError, ModelLoadFailed
from genai_server.messages.generation_request import Adapter
from genai_server.messages.launch import EngineLaunch
from genai_server.messages.prefix_cache import event_target
from genai_server.messages.server_status import EngineCores, EngineState, EngineStatus, ModelStatus, ServerStatus
from genai_server.messages.supervisor_protocol import (
    AddAdapter,
    Command,
    EndServer,
    KeepModel,
    LoadModel,
    RemoveAdapter,
    SetAlias,
    UnloadModel,
    WantModel,
)
from genai_server.model_files.pooling_model import task_of
from genai_server.options.device import DeviceOptions
from genai_server.options.providers import CPU
from genai_server.supervisor.engine_process import EngineWatch, Restarts
from genai_server.supervisor.kv_cache_size import MemoryBudget
from genai_server.supervisor.model_pool import ManagedModel, ModelPool, new_status
from genai_server.supervisor.server import SupervisorServer
from genai_server.system.resources import Core, Node, cpu_quota, in_ranges, numa_nodes
from genai_server.workers.pool import WorkerLimits, WorkerPool

log = logging.getLogger(__name__)
_MIB = 1024 * 1024
# Seconds between two updates of the models' use.
_CHECK_INTERVAL = 0.2


def cores_of_devices(devices: Sequence[str], nodes: Sequence[Node], quota: float = math.inf) -> dict[str, EngineCores]:
    """Return the processor cores of those devices whose engines must keep to certain cores, by device. The result has
    no entry for other devices, whose engines may use all cores.

    Devices with cores of their own have names `cpu:NODE`. On a machine with several NUMA nodes, NODE is the kernel's
    number of a node, whose cores the engine gets. On a machine with one node, several such devices share the node's
    cores equally, if there is at least one core for each. `nodes` are the machine's NUMA nodes with the cores that this
    process may use, and `quota` is the number of CPUs that the control groups grant to all devices together. Raises
    ConfigurationError if this process may use no core of a node.
    """
    named = [device for device in devices if device.startswith(f"{CPU}:")]
    parts: list[tuple[Core, ...]]
    node_numbers: list[int | None] = [None] * len(named)
    if not named:
        return {}
    if len(nodes) > 1:
        node_numbers = [int(device.partition(":")[2]) for device in named]
        by_number = {node.number: node.cores for node in nodes}
        for device, number in zip(named, node_numbers, strict=True):
            if number not in by_number:
                allowed = ", ".join(f"{CPU}:{node.number}" for node in nodes)
                raise ConfigurationError(
                    f"{device}: this process may use no core of NUMA node {number}; it may use those of {allowed}"
                )
        parts = [by_number[number] for number in node_numbers if number is not None]
    elif nodes and 1 < len(named) <= len(nodes[0].cores):
        parts = _divided(nodes[0].cores, len(named))
    else:
        return {}
    return {
        device: EngineCores(
            in_ranges(cpu for core in part for cpu in core.cpus),
            max(1, math.floor(min(len(part), quota / len(named)))),
            number,
        )
        for device, part, number in zip(named, parts, node_numbers, strict=True)
    }


def planned_cores(devices: Sequence[str]) -> dict[str, EngineCores]:
    """Return the processor cores, by device, of those devices whose engines keep to certain cores of this machine (see
    `cores_of_devices`). Raises ConfigurationError if this process may use no core of a named NUMA node.
    """
    return cores_of_devices(devices, numa_nodes(), cpu_quota())


def advice_for_nodes(devices: Sequence[str], nodes: Sequence[Node], weights: int) -> str:
    """Return advice for operators of a machine with several NUMA nodes: to run an engine on each node instead of one
    engine on the cores of all nodes. The result is "" if the machine has one node, or if no device `cpu` uses all
    cores.

    `weights` is the memory that the weights take in each engine, in bytes.
    """
    if CPU not in devices or len(nodes) < 2:
        return ""
    cores = " + ".join(str(len(node.cores)) for node in nodes)
    every = ",".join(f"{CPU}:{node.number}" for node in nodes)
    return (
        f"this machine has {len(nodes)} NUMA nodes ({cores} cores): --device {every} would run an engine on each, for "
        "more tokens/s with several requests at once, because each reads weights from the memory of its own node; that "
        f"takes about {weights / _MIB:.0f} MiB on each node, and a request that runs alone then has one node's cores"
    )


def shortage_of_node(device: str, cores: EngineCores, nodes: Sequence[Node], needed: int) -> str:
    """Return a warning for operators if an engine's NUMA node has too little free memory for the engine's weights; ""
    if the memory suffices or is unknown.

    `cores` are the engine's cores, with the number of the node among `nodes`. `needed` is the memory that the weights
    take, in bytes.
    """
    free = next((node.free_memory for node in nodes if node.number == cores.node), 0)
    if cores.node is None or not free or needed <= free:
        return ""
    return (
        f"device {device} needs about {needed / _MIB:.0f} MiB for weights, and NUMA node {cores.node} has "
        f"{free / _MIB:.0f} MiB free: the rest comes from other nodes, which is slower"
    )


def _divided(cores: Sequence[Core], number: int) -> list[tuple[Core, ...]]:
    """Divide cores into `number` parts that are as equal as possible, both in total and for each kind of core (such as
    fast and efficient), and return the parts. The cores of a part are neighbours.
    """
    parts: list[list[Core]] = [[] for _ in range(number)]
    for kind in sorted({core.kind for core in cores}):
        same_kind = [core for core in cores if core.kind == kind]
        # The smallest parts so far take the cores that remain.
        order = sorted(range(number), key=lambda part: len(parts[part]))
        sizes = {
            part: len(same_kind) // number + (position < len(same_kind) % number) for position, part in enumerate(order)
        }
        first = 0
        for part in range(number):
            parts[part] += same_kind[first : first + sizes[part]]
            first += sizes[part]
    return [tuple(part) for part in parts]


class Supervisor:
    """Owns the engines, the worker pool and the tool servers of one server, from `start` to `stop`: it loads and
    unloads models, restarts engines, and carries out the commands of API processes. It creates `folder` for the files
    of the server's processes.

    The file with its address, by which API processes find it, is in the existing folder `found_in`, or in `folder` if
    that is None. The constructor raises ConfigurationError for invalid device options or tool server tables.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Callable[[], float] = time.monotonic,
        budget: MemoryBudget | None = None,
        found_in: Path | None = None,
    ) -> None:
        for name in settings.served:
            device_options(settings, name)
        planned_cores(settings.devices)
        self.folder = Path(tempfile.mkdtemp(prefix="genai-server-", dir=found_in))
        self._found_in = found_in or self.folder
        self._no_model_loaded = False
        self._settings = settings
        self._tool_servers = tool_servers(settings)
        self._secret = secrets.token_hex(32)
        # Whether it is to leave once no API process is connected.
        self.is_leaving = False
        self._clock = clock
        self._lock = threading.RLock()
        self._stopping = threading.Event()
        self._serials = count()
        self._server: SupervisorServer | None = None
        self._thread = threading.Thread(target=self._run_models, name="models", daemon=True)
        # Without keys nobody's answers are cut off for somebody else's.
        drain = settings.drain_timeout if settings.api_keys or settings.api_key_file else math.inf
        self._budget = budget or MemoryBudget(settings)
        self._models = ModelPool(settings.max_models, settings.idle_unload, self._budget, drain=drain)
        for name, path in settings.served.items():
            model = self._managed_model(name, path, settings.devices)
            files = settings.adapter_files(name).items()
            draft_model = settings.draft_model_of(name)
            if draft_model and (why := task_of(Path(path)).why_no_drafts):
                log.warning("GENAI_DRAFT_MODEL=%s has no effect on model %s: %s", draft_model, name, why)
                draft_model = ""
            model.change(
                adapters=[Adapter(adapter, file, secrets.token_hex(8)) for adapter, file in files],
                chat_template=settings.chat_template_of(name),
                draft_model=draft_model,
            )
            self._models.add(model)
        for alias, name in settings.aliases.items():
            self._models.set_alias(alias, name)
        self._first: list[EngineWatch] = []

    def start(self) -> None:
        """Accept connections of API processes, and start the engines of the models that are loaded at the start. Does
        not wait until the engines are ready.
        """
        limits = WorkerLimits.of(self._settings)
        self._server = SupervisorServer(
            self._found_in,
            self._secret,
            lambda: WorkerPool(limits),
            self._execute,
            tool_servers=self._tool_servers,
            takes_tool_addresses=bool(self._settings.allowed_mcp_hosts),
        )
        with self._lock:
            self._advise()
            self._models.load_first(self._clock())
            self._first = [engine for model in self._models for engine in model.engines]
            self._publish()
        self._thread.start()
        if not self._first:
            self._nothing_loaded()

    def stop(self) -> None:
        """Disconnect the API processes, end all engines, wait for them, and remove `folder`."""
        self._stopping.set()
        if self._server is not None:
            self._server.close()
        if self._thread.is_alive():
            self._thread.join()
        engines = [engine for model in self._models for engine in model.engines]
        for engine in engines:
            engine.leave()
        for engine in engines:
            engine.end()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def num_api_processes(self) -> int:
        """The number of API processes that are connected to the supervisor."""
        return 0 if self._server is None else self._server.num_connected

    def status(self) -> ServerStatus:
        """Return the status of all models and engines, as it is published to API processes."""
        with self._lock:
            return ServerStatus(self._secret, self.statuses(), self._models.statuses(), self._no_model_loaded)

    def statuses(self) -> list[EngineStatus]:
        """Return the status of each engine, in the order of models and devices in the configuration."""
        with self._lock:
            return [status for model in self._models for status in model.engine_statuses()]

    def model_statuses(self) -> list[ModelStatus]:
        """Return the status of each model, in the order of the configuration."""
        with self._lock:
            return self._models.statuses()

    def _advise(self) -> None:
        """Log advice to run an engine on each NUMA node if one engine uses the cores of several nodes."""
        status = next(iter(self._models)).about
        if advice := advice_for_nodes(status.devices, numa_nodes(), self._budget.weights_of_engine(status)):
            log.info("%s", advice)

    def _execute(self, command: Command) -> None:
        """Carry out a command of an API process, and publish the new status. Raises RequestError if the command is not
        possible, such as for an unknown model, and ConfigurationError for invalid options of a device.
        """
        with self._lock:
            now = self._clock()
            match command:
                case LoadModel():
                    self._load(command, now)
                case UnloadModel(name, timeout):
                    self._models.unload(name, now + timeout, now)
                case SetAlias(alias, name):
                    self._models.set_alias(alias, name)
                case KeepModel(name, seconds):
                    self._models.keep(name, seconds)
                case WantModel(name):
                    self._models.request_load(name, now)
                case AddAdapter(name, adapter):
                    self._models.add_adapter(name, adapter)
                case RemoveAdapter(name, id):
                    self._models.remove_adapter(name, id)
                case EndServer():
                    self.is_leaving = True
            self._publish()

    def _load(self, command: LoadModel, now: float) -> None:
        name, draft_model = command.name, command.draft_model
        device_options(self._settings, name, command.devices)
        planned_cores(command.devices)
        if draft_model and (why := task_of(Path(command.path)).why_no_drafts):
            raise ModelLoadFailed(f"draft_model={draft_model}: {why}", param="draft_model")
        model = self._managed_model(name, command.path, command.devices, on_demand=True)
        drafting = draft_model if self._settings.speculation != "off" else ""
        model.change(chat_template=command.chat_template, draft_model=drafting)
        self._models.add(model)
        if command.at_once:
            self._models.request_load(name, now)

    def _run_models(self) -> None:
        while not self._stopping.wait(_CHECK_INTERVAL):
            try:
                self._update_models()
            except Exception:  # requests wait for models that only this thread loads
                log.exception("looking after the models")

    def _update_models(self) -> None:
        with self._lock:
            before = self._models.statuses()
            ending = self._models.update(self._clock())
            if self._models.statuses() != before:
                self._publish()
        for model in ending:
            model.end()
            with self._lock:
                self._models.ended(model)
                log.info("model %s is unloaded", model.about.name)
                self._publish()

    def _managed_model(self, name: str, path: str, devices: Sequence[str], *, on_demand: bool = False) -> ManagedModel:
        status = new_status(name, path, devices, next(self._serials), on_demand=on_demand)
        return ManagedModel(status, self._engines, self._clock())

    def _engines(self, status: ModelStatus) -> list[EngineWatch]:
        options = device_options(self._settings, status.name, status.devices)
        nodes = numa_nodes()
        cores = cores_of_devices(status.devices, nodes, cpu_quota())
        for device, engine_cores in cores.items():
            if shortage := shortage_of_node(device, engine_cores, nodes, self._budget.weights_of_engine(status)):
                log.warning("model %s: %s", status.name, shortage)
        return [
            self._engine(status, device, options.get(device, DeviceOptions()), cores.get(device))
            for device in status.devices
        ]

    def _engine(
        self, status: ModelStatus, device: str, options: DeviceOptions, cores: EngineCores | None
    ) -> EngineWatch:
        settings = self._settings
        return EngineWatch(
            self._launch(status, device, options, cores),
            EngineStatus(device, EngineState.STARTING, model=status.name, serial=status.serial, since=time.time()),
            Restarts(settings.max_restarts),
            self._on_change,
            step_timeout=settings.step_timeout,
            load_timeout=settings.load_timeout,
            clock=self._clock,
        )

    def _launch(
        self, status: ModelStatus, device: str, options: DeviceOptions, cores: EngineCores | None
    ) -> EngineLaunch:
        settings = self._settings
        first = next(iter(settings.served))
        events, topic = settings.kv_events, settings.kv_events_topic
        spec = structs.replace(
            engine_spec(settings, device, status.path),
            options=options,
            profile_folder="" if status.name == first else f"{device}-{quote(status.name, safe='')}",
            adapters=status.adapters,
            kv_events=event_target(events, topic, status, device, num_devices=len(settings.devices)),
            reports_prefixes=len(status.devices) > 1,
            draft_model=status.draft_model,
            cores=cores,
        )
        if cores is not None:
            spec = structs.replace(spec, threads=settings.threads or cores.threads)
        socket = self.folder / f"{status.serial}-{device.replace(':', '-')}.sock"
        address = "" if sys.platform == "win32" else str(socket)
        return EngineLaunch(spec, address, self._secret, str(self.folder))

    def _on_change(self) -> None:
        self._publish()
        if all(engine.status.state == EngineState.FAILED and not engine.has_loaded for engine in self._first):
            self._nothing_loaded()

    def _nothing_loaded(self) -> None:
        self._no_model_loaded = True
        self._publish()

    def _publish(self) -> None:
        with self._lock:
            if self._server is not None:
                self._server.publish(self.status())
