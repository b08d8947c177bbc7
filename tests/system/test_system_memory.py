"""The available memory within the limits of fake control groups."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from genai_server.system.system_memory import free_memory, total_memory

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


def test_free_memory_without_limits_is_the_machines(tmp_path: Path) -> None:
    assert free_memory(tmp_path) == AVAILABLE


@pytest.mark.parametrize(("version", "folder"), [(1, "sys/fs/cgroup/memory"), (2, "sys/fs/cgroup")])
@pytest.mark.parametrize(
    ("limit", "used", "cached", "free"),
    [(500, 100, 0, 400), (500, 100, 60, 460), (5000, 100, 0, 1000), (50, 100, 0, 0)],
)
def test_a_containers_limit_bounds_it_and_cached_files_are_free(
    tmp_path: Path, version: int, folder: str, limit: int, used: int, cached: int, free: int
) -> None:
    _limit(tmp_path / folder, limit, used, cached, version)
    assert free_memory(tmp_path) == free


@pytest.mark.parametrize(("limit", "total"), [(500, 500), (5000, TOTAL), ("max", TOTAL)])
def test_total_memory_is_the_machines_or_a_containers_limit(tmp_path: Path, limit: object, total: int) -> None:
    assert total_memory(tmp_path) == TOTAL
    _limit(tmp_path / "sys/fs/cgroup", limit, 100)
    assert total_memory(tmp_path) == total


def test_a_group_without_limit_bounds_nothing(tmp_path: Path) -> None:
    _limit(tmp_path / "sys/fs/cgroup", "max", 100)
    _limit(tmp_path / "sys/fs/cgroup/memory", 2**63 - 4096, 100, version=1)
    assert free_memory(tmp_path) == AVAILABLE


@pytest.mark.parametrize(("version", "hierarchy"), [(1, "4:memory"), (2, "0:")])
@pytest.mark.parametrize(("own", "parent", "free"), [(300, 900, 200), (900, 300, 200)])
def test_the_own_group_and_those_above_it_count(
    tmp_path: Path, version: int, hierarchy: str, own: int, parent: int, free: int
) -> None:
    _member(tmp_path, f"{hierarchy}:/system.slice/genai.service")
    _limit(tmp_path / TREES[version] / "system.slice", parent, 100, version=version)
    _limit(tmp_path / TREES[version] / "system.slice/genai.service", own, 100, version=version)
    assert free_memory(tmp_path) == free


def test_unreadable_limit_is_ignored(tmp_path: Path) -> None:
    _limit(tmp_path / "sys/fs/cgroup", "", 100)
    assert free_memory(tmp_path) == AVAILABLE


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
