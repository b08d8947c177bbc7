"""Physical cores within affinity and quota, and their NUMA nodes, read from fake /sys and /proc trees."""

import asyncio
import gc
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest

from genai_server.system.resources import (
    Core,
    Node,
    cpus_of,
    free_memory,
    in_ranges,
    numa_nodes,
    rare_full_collections,
    total_memory,
    usable_cores,
    usable_cpus,
)
from tests.recorded_cpus import write_cpus
from tests.running_server import run_python

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="affinity and control groups are Linux's")


def _cpus(sysfs: Path, *siblings: str) -> None:
    """Logical CPUs 0, 1, …, each with the list of CPUs that share its core."""
    for number, text in enumerate(siblings):
        folder = sysfs / f"sys/devices/system/cpu/cpu{number}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{text}\n", encoding="utf-8")


def _file(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n", encoding="utf-8")


def _allow(monkeypatch: pytest.MonkeyPatch, *cpus: int) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(cpus))


@pytest.fixture
def eight_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    _cpus(tmp_path, *map(str, range(8)))
    _allow(monkeypatch, *range(8))
    assert usable_cores(tmp_path) == 8
    return tmp_path


def test_cpus_are_counted_with_their_siblings_up_to_a_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _cpus(tmp_path, "0,1", "0,1", "2,3", "2,3")
    _allow(monkeypatch, 0, 1, 2, 3)
    assert (usable_cores(tmp_path), usable_cpus(tmp_path)) == (2, 4)
    monkeypatch.setattr("genai_server.system.resources.cpu_quota", lambda root: 1.5)
    assert (usable_cores(tmp_path), usable_cpus(tmp_path)) == (1, 1)


@pytest.mark.parametrize(("allowed", "cores"), [((0, 2), 1), ((0, 3), 2), ((1, 2, 3), 2), ((3,), 1)])
def test_only_cores_allowed_to_the_process_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed: tuple[int, ...], cores: int
) -> None:
    _cpus(tmp_path, "0,2", "1,3", "0,2", "1,3")
    _allow(monkeypatch, *allowed)
    assert usable_cores(tmp_path) == cores


def test_every_allowed_cpu_is_a_core_without_a_topology(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _allow(monkeypatch, 4, 5, 6)
    assert usable_cores(tmp_path) == 3


@pytest.mark.parametrize(
    ("quota", "cores"),
    [
        ("max 100000", 8),
        ("400000 100000", 4),
        ("350000 100000", 3),
        ("50000 100000", 1),
        ("1600000 100000", 8),
        ("40000 10000", 4),
        ("max", 8),
        ("", 8),
    ],
)
def test_cgroup_v2_quota_limits_the_cores_to_at_least_one(eight_cores: Path, quota: str, cores: int) -> None:
    _file(eight_cores / "sys/fs/cgroup/cpu.max", quota)
    assert usable_cores(eight_cores) == cores


@pytest.mark.parametrize(("quota", "cores"), [("-1", 8), ("250000", 2), ("20000", 1), ("0", 8)])
def test_cgroup_v1_quota_limits_the_cores(eight_cores: Path, quota: str, cores: int) -> None:
    _file(eight_cores / "sys/fs/cgroup/cpu/cpu.cfs_quota_us", quota)
    _file(eight_cores / "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000")
    assert usable_cores(eight_cores) == cores


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "300000 100000", "cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000"}, 1),
        ({"system.slice/cpu.max": "max 100000", "system.slice/genai.service/cpu.max": "300000 100000"}, 3),
        ({"system.slice/cpu.max": "200000 100000", "system.slice/genai.service/cpu.max": "max 100000"}, 2),
    ],
    ids=["both versions", "own", "parent"],
)
def test_the_tightest_quota_counts(eight_cores: Path, files: dict[str, str], cores: int) -> None:
    _file(eight_cores / "proc/self/cgroup", "0::/system.slice/genai.service")
    for name, text in files.items():
        _file(eight_cores / "sys/fs/cgroup" / name, text)
    assert usable_cores(eight_cores) == cores


# The online CPUs of each node of a machine with two sockets, 32 cores each, and two threads for each core.
_TWO_SOCKETS = {0: "0-31,64-95", 1: "32-63,96-127"}


def _nodes(root: Path) -> dict[int, tuple[int, str]]:
    """The number of cores of each node, and the CPUs of these."""
    cores = {node.number: node.cores for node in numa_nodes(root)}
    return {node: (len(of), in_ranges(cpu for core in of for cpu in core.cpus)) for node, of in cores.items()}


@pytest.mark.parametrize(
    ("online", "threads_apart", "allowed", "nodes"),
    [
        (_TWO_SOCKETS, 64, "0-127", {0: (32, "0-31,64-95"), 1: (32, "32-63,96-127")}),
        # SNC-4 divides a socket of 32 cores into four nodes.
        (
            {0: "0-7,32-39", 1: "8-15,40-47", 2: "16-23,48-55", 3: "24-31,56-63"},
            32,
            "0-63",
            {0: (8, "0-7,32-39"), 1: (8, "8-15,40-47"), 2: (8, "16-23,48-55"), 3: (8, "24-31,56-63")},
        ),
        ({0: "0-7"}, 0, "0-7", {0: (8, "0-7")}),
        # Half of the cores of node 1, and one thread of each of the others, are offline.
        ({0: "0-31,64-95", 1: "32-47"}, 64, "0-47,64-95", {0: (32, "0-31,64-95"), 1: (16, "32-47")}),
        # A cpuset that has part of both nodes, one that has one node, and Kubernetes' static policy: whole cores.
        (_TWO_SOCKETS, 64, "30-33", {0: (2, "30-31"), 1: (2, "32-33")}),
        (_TWO_SOCKETS, 64, "32-39,96-103", {1: (8, "32-39,96-103")}),
        (_TWO_SOCKETS, 64, "2-5,66-69", {0: (4, "2-5,66-69")}),
        # A node that has memory alone.
        ({0: "0-3", 1: "4-7", 2: ""}, 0, "0-7", {0: (4, "0-3"), 1: (4, "4-7")}),
    ],
)
def test_nodes_have_the_cores_that_the_process_may_use(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    online: dict[int, str],
    threads_apart: int,
    allowed: str,
    nodes: dict[int, tuple[int, str]],
) -> None:
    write_cpus(tmp_path, online, threads_apart=threads_apart)
    _allow(monkeypatch, *cpus_of(allowed))
    assert _nodes(tmp_path) == nodes
    assert usable_cores(tmp_path) == sum(cores for cores, _ in nodes.values())


def test_kinds_of_cores_differ_on_hybrid_processors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Two cores with two threads, and two efficiency cores; and ARM's, which differ in capacity.
    _allow(monkeypatch, *range(6))
    intel = write_cpus(tmp_path / "intel", {0: "0-5"}, threads_apart=1, single="4-5", efficient="4-5")
    assert [core.cpus for core in numa_nodes(intel)[0].cores] == [(0, 1), (2, 3), (4,), (5,)]
    assert [core.kind for core in numa_nodes(intel)[0].cores] == ["", "", "e", "e"]
    arm = write_cpus(tmp_path / "arm", {0: "0-5"}, capacities={"0-3": 406, "4-5": 1024})
    assert [core.kind for core in numa_nodes(arm)[0].cores] == ["406"] * 4 + ["1024"] * 2


def test_memory_of_a_node_is_what_is_free_and_what_files_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cpus(tmp_path, {0: "0", 1: "1"}, free_mib=100)
    _allow(monkeypatch, 0, 1)
    assert [node.free_memory for node in numa_nodes(tmp_path)] == [100 << 20, 100 << 20]


def test_a_machine_has_one_node_or_none_where_none_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _allow(monkeypatch, 3, 5)
    assert numa_nodes(tmp_path) == [Node(0, (Core((3,)), Core((5,))), 0)]
    monkeypatch.setattr("sys.platform", "win32")
    assert numa_nodes() == []


@pytest.mark.parametrize("text", ["", "0", "0-3", "0-3,8", "1,3-4,6-9"])
def test_lists_of_cpus_are_read_and_written(text: str) -> None:
    assert in_ranges(reversed(cpus_of(text))) == text


AVAILABLE, TOTAL = 1000, 4000
TREES = {1: "sys/fs/cgroup/memory", 2: "sys/fs/cgroup"}
VERSIONS = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=AVAILABLE, total=TOTAL))


def _limit(group: Path, limit: object, used: int, cached: int = 0, version: int = 2) -> None:
    group.mkdir(parents=True, exist_ok=True)
    names = VERSIONS[version]
    (group / names[0]).write_text(f"{limit}\n", encoding="utf-8")
    (group / names[1]).write_text(f"{used}\n", encoding="utf-8")
    (group / "memory.stat").write_text(f"anon 7\n{names[2]} {cached}\n", encoding="utf-8")


def _member(root: Path, line: str) -> None:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(f"3:cpuset:/other\n{line}\n", encoding="utf-8")


@pytest.mark.parametrize("version", TREES)
@pytest.mark.parametrize(
    ("limit", "used", "cached", "free"),
    [(500, 100, 0, 400), (500, 100, 60, 460), (5000, 100, 0, 1000), (50, 100, 0, 0), ("", 100, 0, 1000)],
)
def test_a_containers_limit_bounds_free_memory_and_cached_files_are_free(
    tmp_path: Path, version: int, limit: int, used: int, cached: int, free: int
) -> None:
    assert free_memory(tmp_path) == AVAILABLE
    _limit(tmp_path / TREES[version], limit, used, cached, version)
    assert free_memory(tmp_path) == free


def test_a_group_without_limit_bounds_nothing(tmp_path: Path) -> None:
    _limit(tmp_path / TREES[2], "max", 100)
    _limit(tmp_path / TREES[1], 2**63 - 4096, 100, version=1)
    assert free_memory(tmp_path) == AVAILABLE


@pytest.mark.parametrize(("limit", "total"), [(500, 500), (5000, TOTAL), ("max", TOTAL)])
def test_total_memory_is_the_machines_or_a_containers_limit(tmp_path: Path, limit: object, total: int) -> None:
    assert total_memory(tmp_path) == TOTAL
    _limit(tmp_path / "sys/fs/cgroup", limit, 100)
    assert total_memory(tmp_path) == total


@pytest.mark.parametrize(("version", "hierarchy"), [(1, "4:memory"), (2, "0:")])
@pytest.mark.parametrize(("own", "parent", "free"), [(300, 900, 200), (900, 300, 200)])
def test_the_own_group_and_those_above_it_count(
    tmp_path: Path, version: int, hierarchy: str, own: int, parent: int, free: int
) -> None:
    _member(tmp_path, f"{hierarchy}:/system.slice/genai.service")
    _limit(tmp_path / TREES[version] / "system.slice", parent, 100, version=version)
    _limit(tmp_path / TREES[version] / "system.slice/genai.service", own, 100, version=version)
    assert free_memory(tmp_path) == free


def test_mapped_files_can_count_as_used_on_the_machine(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemFree: 9 kB\nMapped:    512 kB\nShmem: 7 kB\n", encoding="utf-8")
    assert free_memory(tmp_path) == AVAILABLE
    assert free_memory(tmp_path, keeps_mapped=True) == 0  # more than there is
    (tmp_path / "proc/meminfo").write_text("Mapped: nothing\n", encoding="utf-8")
    assert free_memory(tmp_path, keeps_mapped=True) == AVAILABLE


@pytest.mark.parametrize(("version", "names"), [(1, "total_{}"), (2, "{}")])
def test_cached_files_that_nothing_maps_are_free_in_a_container(tmp_path: Path, version: int, names: str) -> None:
    group = tmp_path / TREES[version]
    _limit(group, 900, 800, 100, version)
    mapped = {1: "total_mapped_file", 2: "file_mapped"}[version]
    lines = f"{names.format('inactive_file')} 100\n{names.format('active_file')} 300\n{mapped} 250\n"
    (group / "memory.stat").write_text(lines, encoding="utf-8")
    assert free_memory(tmp_path) == 100 + 100
    assert free_memory(tmp_path, keeps_mapped=True) == 100 + 150


OWN = """
from genai_server.system.resources import release_free_memory, release_large_blocks_at_once, share_heaps
def own():
    line = next(line for line in open("/proc/self/smaps_rollup") if line.startswith("Pss_Anon"))
    return int(line.split()[1])
"""
LARGE_BLOCKS = """
{call}
del_first = bytearray(20 << 20); del del_first  # by which glibc raises its threshold
kept, before = [], own()
for _ in range(20):
    block = bytearray(1 << 20)
    kept.append(bytearray(100))  # so that the heap cannot shrink from its end
    blocks = [bytearray(300_000) for _ in range(20)]
    kept.append(bytearray(1000))
    del block, blocks
print(own() - before)
"""
FREE_MEMORY = """
before = own()
blocks = [bytearray(20_000) for _ in range(4000)]
kept = blocks[::20]  # so that none of it is at the heap's end
taken = own() - before
del blocks
left = own() - before
release_free_memory()
print(taken, left, own() - before)
"""
THREADS = """
import ctypes, os, tempfile, threading
{call}
libc = ctypes.CDLL(None)
libc.fopen.restype, libc.fopen.argtypes = ctypes.c_void_p, [ctypes.c_char_p, ctypes.c_char_p]
libc.malloc_info.argtypes, libc.fclose.argtypes = [ctypes.c_int, ctypes.c_void_p], [ctypes.c_void_p]
started = threading.Barrier(5)
def work():
    block = bytearray(20_000)
    started.wait()
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
started.wait()
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "heaps")
    file = libc.fopen(path.encode(), b"w")
    libc.malloc_info(0, file)
    libc.fclose(file)
    print(open(path).read().count("<heap nr="))
"""

glibc_only = pytest.mark.skipif(sys.platform != "linux", reason="only glibc is asked")


def output(program: str) -> str:
    return run_python("-c", OWN + program)


@glibc_only
def test_large_blocks_go_back_to_the_system_and_threads_share_the_first_ones_heap() -> None:
    kibibytes = int(output(LARGE_BLOCKS.format(call="release_large_blocks_at_once()")))
    assert kibibytes < 2048
    assert int(output(LARGE_BLOCKS.format(call=""))) > kibibytes
    assert int(output(THREADS.format(call="share_heaps()"))) == 1
    assert int(output(THREADS.format(call=""))) > 1


@glibc_only
def test_free_memory_between_used_blocks_is_returned_on_demand() -> None:
    taken, left, given_back = map(int, output(FREE_MEMORY).split())
    assert left > taken / 2
    assert given_back < taken / 4


# full collections of cycles


class Cycle:
    """An object that references itself, so that reference counting does not free it."""

    def __init__(self) -> None:
        self.itself = self


def aged_cycle() -> "weakref.ref[Cycle]":
    """An unreachable cycle that has survived the collections of young objects, so only a full collection finds it."""
    cycle = Cycle()
    gc.collect(0)
    gc.collect(1)
    return weakref.ref(cycle)


@pytest.mark.anyio
async def test_a_full_collection_comes_by_the_clock() -> None:
    async with rare_full_collections(min_seconds=0.05):
        cycle = aged_cycle()
        gc.collect(1)
        async with asyncio.timeout(30):
            while cycle() is not None:  # noqa: ASYNC110 - the collector has no callback for this
                await asyncio.sleep(0.01)


@pytest.mark.anyio
async def test_memory_freed_by_a_full_collection_goes_to_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    given_back = asyncio.Event()
    monkeypatch.setattr("genai_server.system.resources.release_free_memory", given_back.set)
    async with rare_full_collections(min_seconds=0.05), asyncio.timeout(30):
        await given_back.wait()


@pytest.mark.anyio
async def test_full_collection_is_not_triggered_by_allocations() -> None:
    async with rare_full_collections():
        before = gc.get_stats()[2]["collections"]
        kept = [[index] for index in range(300_000)]  # many times what triggers a collection
        del kept
        assert gc.get_stats()[2]["collections"] == before


@pytest.mark.anyio
async def test_objects_of_the_start_are_frozen_until_the_end() -> None:
    gc.unfreeze()
    before = gc.get_threshold(), gc.get_freeze_count()
    async with rare_full_collections():
        assert gc.get_freeze_count() > 1000
    assert (gc.get_threshold(), gc.get_freeze_count()) == before
