"""What a profile says, in figures: the form that is shown as text, JSON or page. All times are whole microseconds."""

from msgspec import Struct

from genai_server.profile_plan import Profiled
from genai_server.profiles.manifest import Session


class PhaseTime(Struct, frozen=True):
    """The passes of a phase. `other_us` is not in kernels; `median_us` is one pass's; `cores` were computing on the
    average, None without a manifest.
    """

    phase: str
    passes: int
    tokens: int | None
    total_us: int
    median_us: int
    other_us: int
    cores: float | None


class TimeShare(Struct, frozen=True):
    """The time of all kernels of a kind (an operator, a node, a layer): `calls` of them, and each phase's part."""

    name: str
    calls: int
    total_us: int
    by_phase: dict[str, int]


class ThreadShare(Struct, frozen=True):
    """How an operator used its threads, in the kernels where ONNX Runtime says it: while `total_us` passed, the calling
    thread ran its share for `run_us` and waited for the others for `wait_us`; `shared_calls` of `calls` had their work
    shared at all.
    """

    name: str
    calls: int
    shared_calls: int
    total_us: int
    run_us: int
    wait_us: int


class NodeExcess(Struct, frozen=True):
    """A node that took longer in a pass than it does in the median pass, by so much. `name` may be OTHER."""

    name: str
    operator: str
    duration_us: int
    excess_us: int


class SlowToken(Struct, frozen=True):
    """A decode pass that took `ratio` times the median, and the nodes that made it so, most first."""

    index: int
    request_id: str | None
    token: int | None
    file: str
    duration_us: int
    ratio: float
    because: list[NodeExcess]

    @property
    def name(self) -> str:
        """Which token of whom, or else which pass of the profile."""
        if self.token is None:
            return f"pass {self.index} ({self.file})"
        return f"token {self.token} of {self.request_id}"


class PassTime(Struct, frozen=True):
    """One pass, and its kernels as [node, start, duration, depth], where `node` counts in the report's `nodes`.

    `cpu_us` is what the engine's threads computed meanwhile.
    """

    file: str
    request_id: str | None
    phase: str
    token: int | None
    num_tokens: int | None
    start_us: int
    duration_us: int
    other_us: int
    cpu_us: int | None
    kernels: list[tuple[int, int, int, int]]


class NodeName(Struct, frozen=True):
    """A node of the graph."""

    name: str
    operator: str
    provider: str
    layer: int | None


class Report(Struct, frozen=True):
    """All that is known of a profile; lists of shares have the largest first.

    `profiled` says what profiling itself cost, if the session had a plan and has ended. `findings` are sentences,
    `unread` files with the reason. `slow_at` is the multiple of the median from which a token counts as slow.
    """

    name: str
    session: Session | None
    profiled: Profiled | None
    unread: dict[str, str]
    findings: list[str]
    phases: list[PhaseTime]
    operators: list[TimeShare]
    layers: list[TimeShare]
    nodes_by_time: list[TimeShare]
    threads: list[ThreadShare]
    median_decode_us: int | None
    slow_at: float
    slow_tokens: list[SlowToken]
    nodes: list[NodeName]
    passes: list[PassTime]

    @property
    def total_us(self) -> int:
        """Of all passes."""
        return sum(phase.total_us for phase in self.phases)

    @property
    def other_us(self) -> int:
        """Of all passes, not in kernels."""
        return sum(phase.other_us for phase in self.phases)
