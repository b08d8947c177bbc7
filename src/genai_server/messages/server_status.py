"""The status of all models and engines of a server, which the supervisor (the process that starts and monitors engines)
sends to the API processes: states, addresses, restarts, errors and processor cores.
"""

from enum import StrEnum

from msgspec import Struct

from genai_server.messages.generation_request import Adapter
from genai_server.model_files.pooling_model import Task
from genai_server.model_files.speech_and_vision import Medium

# The alias for all names that no model has.
ANY_NAME = "*"


class EngineState(StrEnum):
    """The state of the engine of one model on one device, from loading to its end. A failed engine is not started
    again.
    """

    # The engine is loading its model for the first time.
    STARTING = "starting"
    READY = "ready"
    # The engine process has died; the next one waits or loads.
    RESTARTING = "restarting"
    # The engine accepts no new requests, and ends after the running ones.
    UNLOADING = "unloading"
    # The model is not loaded, so there is no engine process.
    UNLOADED = "unloaded"
    # The engine could not load its model, or has died too often, and is not started again.
    FAILED = "failed"
    STOPPED = "stopped"


class ModelState(StrEnum):
    """The state of a model: loading, ready, unloading, unloaded or failed. It is derived from the states of all of its
    engines.
    """

    LOADING = "loading"
    # At least one engine is ready.
    READY = "ready"
    UNLOADING = "unloading"
    UNLOADED = "unloaded"
    # All of its engines have failed.
    FAILED = "failed"


class EngineCores(Struct, frozen=True):
    """The processor cores on which an engine for a CPU runs, its number of threads, and the NUMA node if it keeps to
    one.
    """

    # Logical CPUs in the form of the kernel's lists, such as "0-31,64-95".
    cpus: str
    # Threads of an operator.
    threads: int
    # The number of the NUMA node whose cores and memory the engine has to itself; None if it is not kept on one.
    node: int | None = None

    def in_words(self) -> str:
        """Return the cores as text for people, such as `32 threads on CPUs 0-31,64-95 of NUMA node 0`."""
        threads = f"{self.threads} thread{'s' * (self.threads != 1)}"
        is_plural = "," in self.cpus or "-" in self.cpus
        of = "" if self.node is None else f" of NUMA node {self.node}"
        return f"{threads} on CPU{'s' * is_plural} {self.cpus}{of}"


class EngineStatus(Struct, frozen=True):
    """The status of the engine of one model on one device, as the supervisor reports it: state, process id, restarts,
    address, last error and maximum length of sequences.
    """

    device: str
    state: EngineState
    pid: int | None = None
    # How often its process was restarted.
    restarts: int = 0
    # Where it listens; "" while it does not.
    address: str = ""
    # The last error.
    error: str | None = None
    # Name and serial of its model.
    model: str = ""
    serial: int = 0
    # When the state began, in seconds since 1970.
    since: float = 0.0
    # Whether it was killed because a step took too long, and has not been ready since.
    hung: bool = False
    # Maximum number of tokens of prompt and answer together, and what sets it; 0 until it has loaded.
    max_length: int = 0
    limited_by: str = ""
    # Where its threads run; None until it has loaded, on devices other than CPUs, and where the system does not tell.
    cores: EngineCores | None = None


class ModelStatus(Struct, frozen=True):
    """The status of a model that the server serves: names, directory, state, adapters and abilities, and why it is not
    loaded. The model has an engine on each of `devices` unless it is unloaded.
    """

    name: str
    path: str
    devices: list[str]
    # Changes whenever the name gets a directory.
    serial: int
    state: ModelState
    # In seconds since 1970.
    created: int
    aliases: list[str] = []
    # Whether it is loaded when a request names it.
    on_demand: bool = False
    # Whether it is being removed.
    leaving: bool = False
    # The adapters that requests may choose.
    adapters: list[Adapter] = []
    # A file or a name, in place of the model's own; "" for the model's own.
    chat_template: str = ""
    # The directory of its draft model; "" for none.
    draft_model: str = ""
    task: Task = Task.GENERATE
    # What it takes besides text, in chats.
    medium: Medium | None = None
    # Seconds without a request after which it is unloaded; None for never.
    idle_unload: float | None = None
    # Why there is no memory for it now, with the figures; "" unless a request waits for it.
    shortage: str = ""
    # Whether there would be none without the other models, either.
    is_too_large: bool = False


class ServerStatus(Struct, frozen=True, tag=True):
    """The status of all models and engines of a server. The supervisor (the process that starts engines) sends it to
    each API process when that connects, and after each change.
    """

    # API processes show it to engines; "" once the supervisor has ended.
    secret: str
    engines: list[EngineStatus]
    # The first one is for requests that name no model.
    models: list[ModelStatus] = []
    # Whether no device could load its model when the server started.
    no_model_loaded: bool = False


# What an API process knows without a supervisor.
NO_SERVER = ServerStatus("", [])
