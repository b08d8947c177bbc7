"""Chooses the processor cores of each engine: `cpu:NODE` has those of a NUMA node, and `cpu` has all."""

import math
from collections.abc import Sequence

from genai_server.errors import ConfigurationError
from genai_server.messages.server_status import EngineCores
from genai_server.options.providers import CPU
from genai_server.system.cores import Core, Node, cpu_quota, in_ranges, numa_nodes

_MIB = 1024 * 1024


def cores_of_devices(devices: Sequence[str], nodes: Sequence[Node], quota: float = math.inf) -> dict[str, EngineCores]:
    """The cores of each of a model's devices that is kept on some; the others may use all.

    With several nodes, the number in `cpu:NODE` is that of the kernel. With one, several such devices have equal parts
    of its cores, as far as there are enough. `quota` is the CPUs of the control groups, which the devices share. Raises
    ConfigurationError for a node without a core that this process may use.
    """
    named = [device for device in devices if device.startswith(f"{CPU}:")]
    parts: list[tuple[Core, ...]]
    numbers: list[int | None] = [None] * len(named)
    if not named:
        return {}
    if len(nodes) > 1:
        numbers = [int(device.partition(":")[2]) for device in named]
        by_number = {node.number: node.cores for node in nodes}
        for device, number in zip(named, numbers, strict=True):
            if number not in by_number:
                known = ", ".join(f"{CPU}:{node.number}" for node in nodes)
                raise ConfigurationError(
                    f"{device}: this process may use no core of NUMA node {number}; it may use those of {known}"
                )
        parts = [by_number[number] for number in numbers if number is not None]
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
        for device, part, number in zip(named, parts, numbers, strict=True)
    }


def planned_cores(devices: Sequence[str]) -> dict[str, EngineCores]:
    """`cores_of_devices` on this machine. Raises ConfigurationError."""
    return cores_of_devices(devices, numa_nodes(), cpu_quota())


def advice_for_nodes(devices: Sequence[str], nodes: Sequence[Node], weights: int) -> str:
    """What an engine for each node would bring, where one engine has the cores of several; "" if there is nothing.

    `weights` is the memory of an engine's weights, in bytes.
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
    """Why the memory of an engine's node does not hold the bytes that the engine needs; "" if it does."""
    free = next((node.free_memory for node in nodes if node.number == cores.node), 0)
    if cores.node is None or not free or needed <= free:
        return ""
    return (
        f"device {device} needs about {needed / _MIB:.0f} MiB for weights, and NUMA node {cores.node} has "
        f"{free / _MIB:.0f} MiB free: the rest comes from other nodes, which is slower"
    )


def _divided(cores: Sequence[Core], number: int) -> list[tuple[Core, ...]]:
    """As many equal parts of the cores, each of neighbours, with as many of each kind; the first may have one more."""
    parts: list[list[Core]] = [[] for _ in range(number)]
    for kind in sorted({core.kind for core in cores}):
        alike = [core for core in cores if core.kind == kind]
        # The smallest parts so far take the cores that remain.
        order = sorted(range(number), key=lambda part: len(parts[part]))
        sizes = {part: len(alike) // number + (place < len(alike) % number) for place, part in enumerate(order)}
        first = 0
        for part in range(number):
            parts[part] += alike[first : first + sizes[part]]
            first += sizes[part]
    return [tuple(part) for part in parts]
