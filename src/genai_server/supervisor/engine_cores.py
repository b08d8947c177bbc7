"""Chooses the processor cores of each engine: `cpu:NODE` has those of a NUMA node, and `cpu` has all."""

import math
from collections.abc import Sequence

from genai_server.errors import ConfigurationError
from genai_server.messages.server_status import EngineCores
from genai_server.options.providers import CPU
from genai_server.system.resources import Core, Node, cpu_quota, in_ranges, numa_nodes

_MIB = 1024 * 1024


def cores_of_devices(devices: Sequence[str], nodes: Sequence[Node], quota: float = math.inf) -> dict[str, EngineCores]:
    """Return the processor cores of those of a model's devices whose engines must keep to certain cores, by device. An
    engine of any other device may use all cores.

    These devices have names `cpu:NODE`. On a machine with several NUMA nodes, NODE is the kernel's number of a node,
    whose cores the engine gets. On a machine with one node, several such devices share the node's cores equally, if
    there is at least one core for each. `quota` is the number of CPUs that the control groups grant to all devices
    together. Raises ConfigurationError if this process may use no core of a node.
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
    """Return what `cores_of_devices` returns for this machine. Raises ConfigurationError."""
    return cores_of_devices(devices, numa_nodes(), cpu_quota())


def advice_for_nodes(devices: Sequence[str], nodes: Sequence[Node], weights: int) -> str:
    """Advice for operators of a machine with several NUMA nodes: run an engine on each node instead of one engine on
    the cores of all. "" if the machine has one node, or if no device `cpu` uses all cores.

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
    """A sentence for operators if the free memory of the NUMA node of an engine is less than `needed`, the bytes that
    the engine's weights take; "" if it suffices or is unknown.
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
    fast and efficient). Cores of a part are neighbours.
    """
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
