"""The report on a profile, as the data that are shown as text, JSON or HTML page. All times are whole microseconds."""

from msgspec import Struct

from genai_server.messages.admin import Profiled
from genai_server.profiles.manifest import Session


class PhaseTime(Struct, frozen=True):
    """Times of all forward passes of one phase, prefill or decode."""

    phase: str
    passes: int
    tokens: int | None
    total_us: int
    # Median duration of a pass.
    median_us: int
    # Time during which no kernel ran.
    other_us: int
    # Average number of cores that were at work; None without a manifest.
    cores: float | None


class TimeShare(Struct, frozen=True):
    """The total time of all kernels of one operator, one node or one layer."""

    name: str
    # Number of kernels.
    calls: int
    total_us: int
    # The part of this time in each phase.
    by_phase: dict[str, int]


class ThreadShare(Struct, frozen=True):
    """How an operator used the threads of ONNX Runtime's pool, summed over its kernels for which ONNX Runtime reports
    that.
    """

    name: str
    calls: int
    # Calls whose work was shared among threads.
    shared_calls: int
    total_us: int
    # Time in which the calling thread ran its share.
    run_us: int
    # Time in which the calling thread waited for the others.
    wait_us: int


class NodeExcess(Struct, frozen=True):
    """A node of the graph that took longer in a slow pass than the median of all decode passes."""

    # The node's name, or OTHER for time during which no kernel ran.
    name: str
    operator: str
    duration_us: int
    # Time by which the duration exceeds the median.
    excess_us: int


class SlowToken(Struct, frozen=True):
    """A decode pass that took much longer than the median decode pass."""

    index: int
    request_id: str | None
    token: int | None
    file: str
    duration_us: int
    # Duration as a multiple of the median.
    ratio: float
    # The nodes with the largest excess, largest first.
    because: list[NodeExcess]

    @property
    def name(self) -> str:
        """The token and its request as text, such as "token 5 of ID"; without a manifest the number of the pass and its
        file.
        """
        if self.token is None:
            return f"pass {self.index} ({self.file})"
        return f"token {self.token} of {self.request_id}"


class PassTime(Struct, frozen=True):
    """Times of one forward pass and of the kernels in it."""

    file: str
    request_id: str | None
    phase: str
    token: int | None
    num_tokens: int | None
    start_us: int
    duration_us: int
    other_us: int
    # CPU time of the engine's threads during the pass.
    cpu_us: int | None
    # Each as [node, start, duration, depth], where `node` is an index into the report's `nodes`.
    kernels: list[tuple[int, int, int, int]]


class NodeName(Struct, frozen=True):
    """Name, operator, execution provider and layer of a node of the graph."""

    name: str
    operator: str
    provider: str
    layer: int | None


class Report(Struct, frozen=True):
    """The report on one profile. Lists of TimeShare are sorted by time, the largest first."""

    name: str
    session: Session | None
    # The cost of profiling itself; None if the session had no plan or has not ended.
    profiled: Profiled | None
    # Files that could not be read, with the reasons.
    unread: dict[str, str]
    # Sentences on what stands out.
    findings: list[str]
    phases: list[PhaseTime]
    operators: list[TimeShare]
    layers: list[TimeShare]
    nodes_by_time: list[TimeShare]
    threads: list[ThreadShare]
    median_decode_us: int | None
    # The multiple of the median beyond which a token is slow.
    slow_at: float
    slow_tokens: list[SlowToken]
    nodes: list[NodeName]
    passes: list[PassTime]

    @property
    def total_us(self) -> int:
        """Total time of all passes, in microseconds."""
        return sum(phase.total_us for phase in self.phases)

    @property
    def other_us(self) -> int:
        """Total time, in microseconds and over all passes, during which no kernel ran."""
        return sum(phase.other_us for phase in self.phases)
