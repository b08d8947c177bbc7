"""An engine's threads and memory are kept on a NUMA node, as the kernel reports it."""

import ctypes
import logging
import os
import subprocess
import sys
from typing import Any
from unittest.mock import Mock

import pytest

from genai_server.engine.host import free_gpu_memory, restrict_to_cores
from genai_server.messages.server_status import EngineCores
from genai_server.system.resources import numa_nodes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has these calls")

_PROGRAM = """
import logging, os, sys, threading
from pathlib import Path
from genai_server.engine.host import restrict_to_cores
from genai_server.messages.server_status import EngineCores
logging.basicConfig(format="log: %(message)s", level="INFO", stream=sys.stdout)
may_end = threading.Event()
before = threading.Thread(target=may_end.wait)
before.start()
restrict_to_cores(EngineCores(sys.argv[1], 1, int(sys.argv[2])))
after = threading.Thread(target=may_end.wait)
after.start()
threads = [int(thread.name) for thread in Path("/proc/self/task").iterdir()]
print(*(sorted(os.sched_getaffinity(thread)) for thread in threads))
policies = {line.split()[1] for line in Path("/proc/self/numa_maps").read_text().splitlines()}
print(*policies)
may_end.set()
"""


def _kept(cpus: str, node: int) -> list[str]:
    """The lines that a process prints after it was kept on CPUs and a node."""
    command = [sys.executable, "-c", _PROGRAM, cpus, str(node)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def test_all_threads_are_kept_on_the_cpus_and_memory_on_the_node() -> None:
    cpu, node = max(os.sched_getaffinity(0)), numa_nodes()[0].number
    *logged, threads, policies = _kept(str(cpu), node)
    assert threads == " ".join([f"[{cpu}]"] * 3)
    if not logged:  # a container may refuse the second call
        assert f"prefer:{node}" in policies.split()


def test_a_node_that_does_not_exist_costs_one_log_line() -> None:
    cpu = max(os.sched_getaffinity(0))
    logged, threads, policies = _kept(str(cpu), 1023)
    assert logged.startswith("log: memory of NUMA node 1023 cannot be preferred: ")
    assert (threads, policies) == (" ".join([f"[{cpu}]"] * 3), "default")


def test_cpus_that_the_process_may_not_use_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    allowed = os.sched_getaffinity(0)
    with caplog.at_level(logging.WARNING):
        restrict_to_cores(EngineCores("9999", 1))
    assert caplog.messages == ["the engine cannot be kept on CPUs 9999: invalid argument"]
    assert os.sched_getaffinity(0) == allowed


@pytest.mark.parametrize(
    ("machine", "why"), [("sparc", "the system call is not known on sparc"), ("x86_64", "only nodes below 1024")]
)
def test_what_cannot_be_asked_for_is_logged(
    machine: str, why: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("os.sched_setaffinity", lambda thread, cpus: None)
    monkeypatch.setattr("platform.machine", lambda: machine)
    with caplog.at_level(logging.INFO):
        restrict_to_cores(EngineCores("0", 1, 1024))
    assert why in caplog.text


def test_nothing_happens_on_other_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "win32")
    restrict_to_cores(EngineCores("9999", 1, 9999))


class Runtime:
    """CUDA's runtime for one GPU; a driver may be too old for it."""

    def __init__(self, free: int) -> None:
        self._free = free

    def cudaSetDevice(self, number: int) -> int:
        return 0 if self._free and number == 0 else 35

    def cudaMemGetInfo(self, free: Any, total: Any) -> int:
        free._obj.value, total._obj.value = self._free, 2 * self._free
        return 0


@pytest.mark.parametrize(
    ("runtimes", "number", "free"),
    [
        # The first runtime that the driver supports tells.
        ([Runtime(9), None], 0, 9),
        ([None, Runtime(9)], 0, 9),
        ([Runtime(0), Runtime(9)], 0, 9),
        # Nothing is known without a GPU, or of another one.
        ([None, None], 0, None),
        ([Runtime(0), None], 0, None),
        ([None, Runtime(0)], 0, None),
        ([Runtime(9), Runtime(9)], 1, None),
    ],
)
def test_cudas_runtime_tells_the_free_memory(
    runtimes: list[Runtime | None], number: int, free: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", Mock(side_effect=[runtime or OSError("not found") for runtime in runtimes]))
    assert free_gpu_memory(number) == free
