"""The report on a profile of a model's forward passes: its fields (`Report`), which are shown as text, JSON or HTML
page, and the analysis that computes them (`analyse`).

The analysis finds how the time is shared among operators, layers and nodes, which decode tokens were slow, and what
else stands out. All times are whole microseconds.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median

from msgspec import Struct

from genai_server.messages.admin import Profiled
from genai_server.profiles.manifest import DECODE, PREFILL, Session
from genai_server.profiles.profile_files import ForwardPass, Kernel, Profile

# The name under which time outside kernels is listed among the nodes.
OTHER = "(not in kernels)"
SLOW_AT = 1.5
_MAX_REASONS = 5


class PhaseTime(Struct, frozen=True):
    """A part of the report: the times of all forward passes of one phase, prefill or decode, in microseconds."""

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
    """A part of the report: the number and the total time, in microseconds, of all kernels of one operator, one node or
    one layer.
    """

    name: str
    # Number of kernels.
    calls: int
    total_us: int
    # The part of this time in each phase.
    by_phase: dict[str, int]


class ThreadShare(Struct, frozen=True):
    """A part of the report: how the kernels of one operator used the threads of ONNX Runtime's pool, summed over those
    kernels for which ONNX Runtime reports it. Times are in microseconds.
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
    """A reason why a pass was slow: a node of the graph that took longer in it than the median of all decode passes.
    Times are in microseconds.
    """

    # The node's name, or OTHER for time during which no kernel ran.
    name: str
    operator: str
    duration_us: int
    # Time by which the duration exceeds the median.
    excess_us: int


class SlowToken(Struct, frozen=True):
    """A decode pass that took much longer than the median decode pass, with the nodes that took most of the additional
    time.
    """

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
        """The token and its request as text, such as "token 5 of ID"; without a manifest, the number of the pass and
        its file.
        """
        if self.token is None:
            return f"pass {self.index} ({self.file})"
        return f"token {self.token} of {self.request_id}"


class PassTime(Struct, frozen=True):
    """A part of the report: when one forward pass ran and for how long, and the same for each kernel in it, in
    microseconds.
    """

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
    """The name, operator, execution provider and layer of a node of the graph. Kernels in the report refer to it by
    index.
    """

    name: str
    operator: str
    provider: str
    layer: int | None


class Report(Struct, frozen=True):
    """The report on one profile, as it is shown to operators: times by phase, operator, layer and node, slow tokens,
    and sentences about what stands out. Lists of TimeShare are sorted by time, the largest first.
    """

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
        """The total time of all passes, in microseconds."""
        return sum(phase.total_us for phase in self.phases)

    @property
    def other_us(self) -> int:
        """The total time of all passes during which no kernel ran, in microseconds."""
        return sum(phase.other_us for phase in self.phases)


def analyse(profile: Profile, slow_at: float = SLOW_AT) -> Report:
    """Analyse a profile and return the report on it. A decode token is slow if it took more than `slow_at` times the
    median.
    """
    passes = profile.passes
    decodes = [(index, forward_pass) for index, forward_pass in enumerate(passes) if forward_pass.phase == DECODE]
    nodes = _nodes(passes)
    phases = [_phase(name, passes) for name in dict.fromkeys(forward_pass.phase for forward_pass in passes)]
    slow = _slow_tokens(decodes, slow_at)
    return Report(
        name=profile.name,
        session=profile.session,
        profiled=profile.profiled,
        unread=profile.unread,
        findings=find(profile.session, phases, slow),
        phases=phases,
        operators=_shares(passes, lambda kernel: kernel.operator),
        layers=_shares(passes, _layer_name),
        nodes_by_time=_shares(passes, lambda kernel: kernel.node),
        threads=_threads(passes),
        median_decode_us=round(median(forward_pass.duration for _, forward_pass in decodes)) if decodes else None,
        slow_at=slow_at,
        slow_tokens=slow,
        nodes=list(nodes),
        passes=[_pass_time(forward_pass, nodes) for forward_pass in passes],
    )


def _phase(name: str, passes: Iterable[ForwardPass]) -> PhaseTime:
    in_phase = [forward_pass for forward_pass in passes if forward_pass.phase == name]
    token_counts = [forward_pass.num_tokens for forward_pass in in_phase if forward_pass.num_tokens is not None]
    records = [forward_pass.record for forward_pass in in_phase if forward_pass.record is not None]
    seconds = sum(record.seconds for record in records)
    return PhaseTime(
        phase=name,
        passes=len(in_phase),
        tokens=sum(token_counts) if len(token_counts) == len(in_phase) else None,
        total_us=sum(forward_pass.duration for forward_pass in in_phase),
        median_us=round(median(forward_pass.duration for forward_pass in in_phase)),
        other_us=sum(forward_pass.other_time for forward_pass in in_phase),
        cores=sum(record.cpu_seconds for record in records) / seconds if seconds else None,
    )


def _shares(passes: Sequence[ForwardPass], name: Callable[[Kernel], str]) -> list[TimeShare]:
    calls: Counter[str] = Counter()
    times: dict[str, Counter[str]] = defaultdict(Counter)
    for forward_pass in passes:
        for kernel in forward_pass.kernels:
            calls[name(kernel)] += 1
            times[name(kernel)][forward_pass.phase] += kernel.self_time
    shares = [TimeShare(key, calls[key], by_phase.total(), dict(by_phase)) for key, by_phase in times.items()]
    return sorted(shares, key=lambda share: -share.total_us)


def _threads(passes: Iterable[ForwardPass]) -> list[ThreadShare]:
    by_operator: dict[str, list[tuple[int, int, int, int]]] = defaultdict(list)
    for kernel in (kernel for forward_pass in passes for kernel in forward_pass.kernels):
        if (use := kernel.threads) is not None:
            by_operator[kernel.operator].append((use.num_shared > 0, kernel.self_time, use.run, use.wait))
    sums = {name: [sum(column) for column in zip(*rows, strict=True)] for name, rows in by_operator.items()}
    shares = [ThreadShare(name, len(by_operator[name]), *columns) for name, columns in sums.items()]
    return sorted(shares, key=lambda share: -share.total_us)


def _slow_tokens(decodes: Sequence[tuple[int, ForwardPass]], slow_at: float) -> list[SlowToken]:
    if not decodes:
        return []
    times = [_node_times(forward_pass) for _, forward_pass in decodes]
    usual = {name: median(each[name] for each in times) for name in {name for each in times for name in each}}
    typical = median(forward_pass.duration for _, forward_pass in decodes)
    slow = [
        SlowToken(
            index=index,
            request_id=forward_pass.record.request_id if forward_pass.record else None,
            token=forward_pass.record.token if forward_pass.record else None,
            file=forward_pass.file,
            duration_us=forward_pass.duration,
            ratio=forward_pass.duration / typical,
            because=_excess(forward_pass, node_times, usual),
        )
        for (index, forward_pass), node_times in zip(decodes, times, strict=True)
        if forward_pass.duration > slow_at * typical > 0
    ]
    return sorted(slow, key=lambda token: -token.ratio)


def _excess(forward_pass: ForwardPass, node_times: Counter[str], usual: dict[str, float]) -> list[NodeExcess]:
    operators = {kernel.node: kernel.operator for kernel in forward_pass.kernels}
    excesses = [
        NodeExcess(name, operators.get(name, ""), spent, excess)
        for name, spent in node_times.items()
        if (excess := round(spent - usual[name])) > 0
    ]
    return sorted(excesses, key=lambda node: -node.excess_us)[:_MAX_REASONS]


def _node_times(forward_pass: ForwardPass) -> Counter[str]:
    times: Counter[str] = Counter({OTHER: forward_pass.other_time})
    for kernel in forward_pass.kernels:
        times[kernel.node] += kernel.self_time
    return times


def _nodes(passes: Iterable[ForwardPass]) -> dict[NodeName, int]:
    """Return an index for each node of the graph that ran in the passes. The nodes are numbered in the order in which
    they first ran.
    """
    names: dict[NodeName, int] = {}
    for kernel in (kernel for forward_pass in passes for kernel in forward_pass.kernels):
        names.setdefault(_name(kernel), len(names))
    return names


def _name(kernel: Kernel) -> NodeName:
    return NodeName(kernel.node, kernel.operator, kernel.provider, kernel.layer)


def _layer_name(kernel: Kernel) -> str:
    return "outside the layers" if kernel.layer is None else f"layer {kernel.layer}"


def _pass_time(forward_pass: ForwardPass, nodes: dict[NodeName, int]) -> PassTime:
    record = forward_pass.record
    return PassTime(
        file=forward_pass.file,
        request_id=record.request_id if record else None,
        phase=forward_pass.phase,
        token=record.token if record else None,
        num_tokens=forward_pass.num_tokens,
        start_us=forward_pass.start,
        duration_us=forward_pass.duration,
        other_us=forward_pass.other_time,
        cpu_us=round(record.cpu_seconds * 1e6) if record else None,
        kernels=[
            (nodes[_name(kernel)], kernel.start, kernel.duration, kernel.depth) for kernel in forward_pass.kernels
        ],
    )


# If less than this share of the threads was at work, other processes used the cores. ONNX Runtime's threads wait by
# spinning, which counts as work, unless spinning is switched off.
_STARVED = 0.7
_MAX_OTHER = 0.3
_MAX_PREFILL = 0.4


def find(session: Session | None, phases: Sequence[PhaseTime], slow: Sequence[SlowToken]) -> list[str]:
    """Return sentences for operators about what stands out in a profile, such as the slowest token or cores that other
    processes used, the most general first.

    `session` describes how the profile was recorded (None without a manifest), `phases` has the times of prefill and
    decode, and `slow` the slow tokens.
    """
    findings = [] if session is None else list(_of_session(session, phases))
    total = sum(phase.total_us for phase in phases)
    other_us = sum(phase.other_us for phase in phases)
    if total and other_us > _MAX_OTHER * total:
        findings.append(
            f"{_percent(other_us, total)} of the time is in no kernel: the model is small for its many operators"
        )
    for phase in phases:
        if phase.phase == PREFILL and phase.total_us > _MAX_PREFILL * total and phase.total_us < total:
            findings.append(f"{_percent(phase.total_us, total)} of the time is the prompt ({phase.tokens} tokens)")
    if slow and slow[0].because:
        worst = slow[0]
        times, node = f"{worst.ratio:.1f} times the median", worst.because[0].name
        findings.append(f"the slowest token, {worst.name}, took {times}, most in {node}")
    return findings


def _of_session(session: Session, phases: Sequence[PhaseTime]) -> Iterator[str]:
    if session.device != "cpu":
        return
    if session.threads < session.cores:
        set_by = "GENAI_THREADS, or intra_op_num_threads,"
        yield f"operators run on {session.threads} of {session.cores} cores: {set_by} is {session.threads}"
    measured = [(phase.cores, phase.total_us) for phase in phases if phase.cores is not None]
    weight = sum(time for _, time in measured)
    at_work = sum(cores * time for cores, time in measured) / weight if weight else None
    if session.spins and at_work is not None and at_work < _STARVED * session.threads:
        yield f"only {at_work:.2f} cores were at work where {session.threads} could be: other processes used the rest"


def _percent(part: int, total: int) -> str:
    return f"{100 * part / total:.0f} %"
