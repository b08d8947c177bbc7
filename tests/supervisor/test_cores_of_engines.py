"""Which cores each engine has, on machines of several forms."""

import math
import sys
from pathlib import Path

import pytest

from genai_server.errors import ConfigurationError
from genai_server.messages.server_status import EngineCores
from genai_server.supervisor.supervisor import advice_for_nodes, cores_of_devices, shortage_of_node
from genai_server.system.resources import Core, Node, numa_nodes
from tests.recorded_cpus import write_cpus

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells nodes")
_MIB = 1024 * 1024


@pytest.fixture
def two_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Node]:
    """Two nodes of 32 cores with two threads each, and 1000 MiB free on each."""
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(128)))
    nodes = {0: "0-31,64-95", 1: "32-63,96-127"}
    return numa_nodes(write_cpus(tmp_path, nodes, threads_apart=64, free_mib=1000))


def _one_node(*kinds: str) -> list[Node]:
    return [Node(0, tuple(Core((cpu,), kind) for cpu, kind in enumerate(kinds)))]


def _cpus(devices: list[str], nodes: list[Node]) -> dict[str, str]:
    return {device: cores.cpus for device, cores in cores_of_devices(devices, nodes).items()}


def test_an_engine_of_a_node_has_its_cores(two_sockets: list[Node]) -> None:
    assert cores_of_devices(["cpu:0", "cpu:1", "cuda:1"], two_sockets) == {
        "cpu:0": EngineCores("0-31,64-95", 32, 0),
        "cpu:1": EngineCores("32-63,96-127", 32, 1),
    }
    assert _cpus(["cpu:1"], two_sockets) == {"cpu:1": "32-63,96-127"}
    assert cores_of_devices(["cpu", "scripted:1"], two_sockets) == {}


def test_a_node_without_a_usable_core_is_refused(two_sockets: list[Node]) -> None:
    with pytest.raises(ConfigurationError, match=r"cpu:2: .* no core of NUMA node 2; it may use those of cpu:0, cpu:1"):
        cores_of_devices(["cpu:0", "cpu:2"], two_sockets)


@pytest.mark.parametrize(
    ("kinds", "devices", "cpus"),
    [
        ([""] * 8, "cpu:0 cpu:1", "0-3 4-7"),
        ([""] * 8, "cpu:0 cpu:4 cpu:9", "0-2 3-5 6-7"),
        (list("ffffffss"), "cpu:0 cpu:1", "0-2,6 3-5,7"),
        (list("fs"), "cpu:0 cpu:1", "0 1"),
        # One engine has all cores, and so has each of too many.
        *(([""] * 2, devices, "") for devices in ("cpu", "cpu:0", "cpu cpu:1", "cpu:0 cpu:1 cpu:2")),
    ],
)
def test_engines_divide_the_cores_of_each_kind_on_one_node(kinds: list[str], devices: str, cpus: str) -> None:
    nodes, named = _one_node(*kinds), devices.split()
    assert _cpus(named, nodes) == (dict(zip(named, cpus.split(), strict=True)) if cpus else {})
    assert {cores.node for cores in cores_of_devices(named, nodes).values()} <= {None}


@pytest.mark.parametrize(("quota", "threads"), [(math.inf, 32), (100, 32), (40.5, 20), (1, 1)])
def test_engines_share_a_quota(quota: float, threads: int, two_sockets: list[Node]) -> None:
    found = cores_of_devices(["cpu:0", "cpu:1"], two_sockets, quota)
    assert [cores.threads for cores in found.values()] == [threads, threads]


def test_one_engine_on_several_nodes_gets_advice(two_sockets: list[Node]) -> None:
    advice = advice_for_nodes(["cpu"], two_sockets, 500 * _MIB)
    assert "2 NUMA nodes (32 + 32 cores): --device cpu:0,cpu:1 would run an engine on each" in advice
    assert "about 500 MiB on each node" in advice
    assert "\n" not in advice
    assert advice_for_nodes(["cpu:0", "cpu:1"], two_sockets, 0) == ""
    assert advice_for_nodes(["cpu"], two_sockets[:1], 0) == ""


def test_weights_that_a_node_does_not_hold_are_reported(two_sockets: list[Node]) -> None:
    cores = cores_of_devices(["cpu:1"], two_sockets)["cpu:1"]
    assert shortage_of_node("cpu:1", cores, two_sockets, 1000 * _MIB) == ""
    shortage = shortage_of_node("cpu:1", cores, two_sockets, 1001 * _MIB)
    assert shortage.startswith("device cpu:1 needs about 1001 MiB for weights, and NUMA node 1 has 1000 MiB free")
    assert shortage_of_node("cpu:1", EngineCores("0-3", 4), two_sockets, 1001 * _MIB) == ""


def test_cores_are_named_in_words() -> None:
    assert EngineCores("0-31,64-95", 32, 1).in_words() == "32 threads on CPUs 0-31,64-95 of NUMA node 1"
    assert EngineCores("7", 1).in_words() == "1 thread on CPU 7"
