"""Writes a tree like that of /sys for a machine's CPUs and NUMA nodes, from a few numbers."""

from pathlib import Path

from genai_server.system.resources import cpus_of


def write_cpus(
    root: Path,
    nodes: dict[int, str],
    *,
    threads_apart: int = 0,
    single: str = "",
    free_mib: int = 0,
    capacities: dict[str, int] | None = None,
    efficient: str = "",
) -> Path:
    """Write the files below `root` and return it.

    `nodes` has the CPUs that are online of each node. The numbers of the two threads of a core differ by
    `threads_apart` (0: a core has one thread); each CPU of `single` has a core of its own. `capacities` has the
    `cpu_capacity` of CPUs; `efficient` is the list of Intel's efficiency cores.
    """
    online, alone = {cpu for cpus in nodes.values() for cpu in cpus_of(cpus)}, set(cpus_of(single))
    for cpu in online:
        threads = {cpu}
        if threads_apart and cpu not in alone:
            threads.add(cpu + (-threads_apart if cpu // threads_apart % 2 else threads_apart))
        siblings = ",".join(map(str, sorted(threads & online)))
        _write(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", siblings)
    for cpus, capacity in (capacities or {}).items():
        for cpu in cpus_of(cpus):
            _write(root / f"sys/devices/system/cpu/cpu{cpu}/cpu_capacity", str(capacity))
    if efficient:
        _write(root / "sys/devices/cpu_atom/cpus", efficient)
    for node, cpus in nodes.items():
        folder = root / f"sys/devices/system/node/node{node}"
        _write(folder / "cpulist", cpus)
        sizes = {"MemTotal": 2048 * free_mib, "MemFree": 512 * free_mib, "Inactive(file)": 512 * free_mib}
        _write(folder / "meminfo", "\n".join(f"Node {node} {name}: {size:>14} kB" for name, size in sizes.items()))
    return root


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n", encoding="ascii")
