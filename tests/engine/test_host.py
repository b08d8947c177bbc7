"""An engine's threads and memory are kept on a NUMA node, as the kernel reports it."""

import ctypes
import logging
import os
import subprocess
import sys
from typing import Any

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


def load(monkeypatch: pytest.MonkeyPatch, *found: Runtime | None) -> None:
    """Let these be the libraries of CUDA 13 and 12."""
    libraries = iter(found)

    def open_library(name: str) -> Runtime:
        if (runtime := next(libraries)) is None:
            raise OSError(name)
        return runtime

    monkeypatch.setattr(ctypes, "CDLL", open_library)


@pytest.mark.parametrize("runtimes", [(Runtime(9), None), (None, Runtime(9)), (Runtime(0), Runtime(9))])
def test_the_first_runtime_that_the_driver_supports_tells(
    runtimes: tuple[Runtime | None, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    load(monkeypatch, *runtimes)
    assert free_gpu_memory(0) == 9


@pytest.mark.parametrize("runtimes", [(None, None), (Runtime(0), None), (None, Runtime(0))])
def test_without_a_gpu_nothing_is_known(runtimes: tuple[Runtime | None, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    load(monkeypatch, *runtimes)
    assert free_gpu_memory(0) is None


def test_nothing_is_known_of_another_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    load(monkeypatch, Runtime(9), Runtime(9))
    assert free_gpu_memory(1) is None
