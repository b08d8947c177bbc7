"""Figures of GPUs are read from what nvidia-smi prints; a GPU or a process that it does not know has none."""

import sys
from pathlib import Path

import pytest
from _load.gpu import gpu_memory, gpu_names, gpu_use

SCRIPT = """#!/bin/sh
case "$1" in
--query-gpu=memory.used) echo 1234; echo '[N/A]';;
--query-gpu=name,driver_version,memory.total) echo 'NVIDIA H100 80GB HBM3, 580.65.06, 81559';;
--query-gpu=memory.used,*) echo '1234, 87, 345.12, 1980';;
--query-compute-apps=*) echo '77, 1100'; echo '78, [N/A]';;
*) exit 1;;
esac
"""

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a shell's script")


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    file = tmp_path / "nvidia-smi"
    file.write_text(SCRIPT, encoding="utf-8")
    file.chmod(0o755)
    return file


@pytest.mark.usefixtures("program")
def test_gpus_are_described() -> None:
    assert gpu_names() == [{"name": "NVIDIA H100 80GB HBM3", "driver_version": "580.65.06", "memory.total": "81559"}]
    assert gpu_use()[0]["utilization.gpu"] == "87"


@pytest.mark.usefixtures("program")
def test_memory_is_that_of_all_gpus_and_of_one_process() -> None:
    assert gpu_memory(77) == {"gpu_mib": 1234, "engine_gpu_mib": 1100}
    assert gpu_memory(78) == {"gpu_mib": 1234}


def test_a_failing_program_reports_nothing(program: Path) -> None:
    program.write_text("#!/bin/sh\nexit 9\n", encoding="utf-8")
    assert (gpu_names(), gpu_memory(77)) == ([], {})


@pytest.mark.usefixtures("program")
def test_without_the_program_nothing_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert (gpu_names(), gpu_use(), gpu_memory(1)) == ([], [], {})
