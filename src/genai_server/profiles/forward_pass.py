"""The data of a profile: forward passes of a model, and the kernels that ran in each. All times are in microseconds."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from genai_server.messages.admin import Profiled
from genai_server.profiles.manifest import PassRecord, Session

_LAYER = re.compile(r"\blayers?[./](\d+)\b")


@dataclass(frozen=True)
class ThreadUse:
    """What the threads of ONNX Runtime's pool did during a kernel, as far as ONNX Runtime reports it. Times are in
    microseconds.
    """

    # Time in which the calling thread ran its share.
    run: int
    # Time in which the calling thread waited for the others.
    wait: int
    # Pieces of the work that the other threads took.
    num_shared: int


@dataclass(frozen=True)
class Kernel:
    """One execution of a node of the graph. Times are in microseconds."""

    node: str
    operator: str
    provider: str
    # Time from the start of the forward pass.
    start: int
    duration: int
    # The duration without that of kernels nested in this one, as in a node with a subgraph.
    self_time: int
    # Nesting depth: the number of kernels in which this one is nested.
    depth: int = 0
    # The system's id of the calling thread.
    thread: int = 0
    threads: ThreadUse | None = None

    @property
    def layer(self) -> int | None:
        """Number of the decoder layer, from the node's name, as 3 in /model/layers.3/attn; None for nodes outside the
        layers.
        """
        found = _LAYER.search(self.node)
        return int(found[1]) if found else None


@dataclass(frozen=True)
class ForwardPass:
    """One run of the model for a chunk of a prompt or for a decode step. Times are in microseconds."""

    file: str
    # Time from the start of the profile's first pass.
    start: int
    duration: int
    kernels: tuple[Kernel, ...]
    phase: str
    # Number of tokens that the pass has read; None if unknown.
    num_tokens: int | None = None
    # The entry for this pass in the manifest; None without a manifest.
    record: PassRecord | None = None

    @property
    def kernel_time(self) -> int:
        """Time in microseconds during which at least one kernel ran."""
        total, end = 0, 0
        for kernel in sorted(self.kernels, key=lambda kernel: kernel.start):
            last = kernel.start + kernel.duration
            total += max(0, last - max(end, kernel.start))
            end = max(end, last)
        return total

    @property
    def other_time(self) -> int:
        """Time in microseconds during which no kernel ran: binding inputs, allocating memory, and the time between
        nodes.
        """
        return max(0, self.duration - self.kernel_time)


@dataclass(frozen=True)
class Profile:
    """The forward passes of a profile session, in order."""

    name: str
    # Contains the files of the passes.
    folder: Path
    passes: list[ForwardPass]
    session: Session | None = None
    # Files that cannot be read, with the reasons.
    unread: dict[str, str] = field(default_factory=dict)
    # The result of the session's plan; None if it had none or has not ended.
    profiled: Profiled | None = None
