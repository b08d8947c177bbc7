"""Physical cores within affinity and quota, and their NUMA nodes, read from fake /sys and /proc trees."""

import sys
from pathlib import Path

import pytest

from genai_server.system.cores import Core, cpus_of, in_ranges, numa_nodes, usable_cores, usable_cpus
from tests.recorded_cpus import write_cpus

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
    return tmp_path


def test_cpus_are_counted_with_their_siblings_up_to_a_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _cpus(tmp_path, "0,1", "0,1", "2,3", "2,3")
    _allow(monkeypatch, 0, 1, 2, 3)
    assert (usable_cores(tmp_path), usable_cpus(tmp_path)) == (2, 4)
    monkeypatch.setattr("genai_server.system.cores.cpu_quota", lambda root: 1.5)
    assert (usable_cores(tmp_path), usable_cpus(tmp_path)) == (1, 1)


def test_cores_are_counted_without_limits(eight_cores: Path) -> None:
    assert usable_cores(eight_cores) == 8


def test_threads_of_one_core_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _cpus(tmp_path, "0,2", "1,3", "0,2", "1,3")
    _allow(monkeypatch, 0, 1, 2, 3)
    assert usable_cores(tmp_path) == 2


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


def test_tighter_quota_of_both_cgroup_versions_counts(eight_cores: Path) -> None:
    _file(eight_cores / "sys/fs/cgroup/cpu.max", "300000 100000")
    _file(eight_cores / "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "100000")
    _file(eight_cores / "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000")
    assert usable_cores(eight_cores) == 1


def test_this_machine_has_a_core() -> None:
    assert usable_cores() >= 1


@pytest.mark.parametrize(
    ("own", "parent", "cores"), [("300000 100000", "max 100000", 3), ("max 100000", "200000 100000", 2)]
)
def test_quotas_of_the_own_and_parent_cgroups_count(eight_cores: Path, own: str, parent: str, cores: int) -> None:
    _file(eight_cores / "proc/self/cgroup", "0::/system.slice/genai.service")
    _file(eight_cores / "sys/fs/cgroup/system.slice/cpu.max", parent)
    _file(eight_cores / "sys/fs/cgroup/system.slice/genai.service/cpu.max", own)
    assert usable_cores(eight_cores) == cores


# The online CPUs of each node of a machine with two sockets, 32 cores each, and two threads for each core.
_TWO_SOCKETS = {0: "0-31,64-95", 1: "32-63,96-127"}


def _nodes(root: Path) -> dict[int, tuple[int, str]]:
    """The number of cores of each node, and the CPUs of these."""
    return {
        node.number: (len(node.cores), in_ranges(cpu for core in node.cores for cpu in core.cpus))
        for node in numa_nodes(root)
    }


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


def test_a_machine_that_does_not_tell_its_nodes_has_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _allow(monkeypatch, 3, 5)
    (node,) = numa_nodes(tmp_path)
    assert (node.number, node.cores, node.free_memory) == (0, (Core((3,)), Core((5,))), 0)


def test_this_machines_nodes_have_its_cores() -> None:
    assert sum(len(node.cores) for node in numa_nodes()) >= usable_cores()


def test_other_systems_have_no_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "win32")
    assert numa_nodes() == []


@pytest.mark.parametrize("text", ["", "0", "0-3", "0-3,8", "1,3-4,6-9"])
def test_lists_of_cpus_are_read_and_written(text: str) -> None:
    assert in_ranges(reversed(cpus_of(text))) == text
