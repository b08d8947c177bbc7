"""A profile: forward passes, and the kernels that ran in each. Times are microseconds, as ONNX Runtime's are."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from genai_server.profile_plan import Profiled
from genai_server.profiles.manifest import PassRecord, Session

_LAYER = re.compile(r"\blayers?[./](\d+)\b")


@dataclass(frozen=True)
class ThreadUse:
    """How an operator's threads spent a kernel: the calling one ran its share for `run` µs and waited for others for
    `wait`; the others took `num_shared` pieces of the work.
    """

    run: int
    wait: int
    num_shared: int


@dataclass(frozen=True)
class Kernel:
    """One execution of a node of the graph, `start` µs after its pass began.

    `self_time` is its duration without that of the kernels within it, which a node with a graph of its own has, and
    `depth` in how many such it lies. `thread` is the system's number of the calling thread.
    """

    node: str
    operator: str
    provider: str
    start: int
    duration: int
    self_time: int
    depth: int = 0
    thread: int = 0
    threads: ThreadUse | None = None

    @property
    def layer(self) -> int | None:
        """The decoder layer, by the node's name."""
        return layer_of(self.node)


@dataclass(frozen=True)
class ForwardPass:
    """A run of the model, `start` µs after the first one of its profile.

    `num_tokens` is what it read, None where nothing tells; `record` is what the manifest knows of it.
    """

    file: str
    start: int
    duration: int
    kernels: tuple[Kernel, ...]
    phase: str
    num_tokens: int | None = None
    record: PassRecord | None = None

    @property
    def kernel_time(self) -> int:
        """In kernels, at least one at a time."""
        total, end = 0, 0
        for kernel in sorted(self.kernels, key=lambda kernel: kernel.start):
            last = kernel.start + kernel.duration
            total += max(0, last - max(end, kernel.start))
            end = max(end, last)
        return total

    @property
    def other_time(self) -> int:
        """Not in any kernel: binding inputs, allocating, going from node to node."""
        return max(0, self.duration - self.kernel_time)


@dataclass(frozen=True)
class Profile:
    """The passes of a session in order, of files in `folder`; `unread` are those that cannot be read, with reasons.
    `profiled` is what has come of the session's plan, if it had one and has ended.
    """

    name: str
    folder: Path
    passes: list[ForwardPass]
    session: Session | None = None
    unread: dict[str, str] = field(default_factory=dict)
    profiled: Profiled | None = None


def layer_of(node: str) -> int | None:
    """The number of the decoder layer that a node's name speaks of, as in /model/layers.3/attn."""
    found = _LAYER.search(node)
    return int(found[1]) if found else None
