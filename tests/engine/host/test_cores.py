"""The number of threads: physical cores within affinity and quota, read from fake /sys and /proc trees."""

import sys
from pathlib import Path

import pytest

from genai_server.engine.host.cores import usable_cores, usable_cpus

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
    monkeypatch.setattr("genai_server.engine.host.cores.cpu_quota", lambda root: 1.5)
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
