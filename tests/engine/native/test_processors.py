"""The kernels on processors that lack this machine's instructions, which qemu emulates."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import genai_server_native
import pytest

from tests.engine.native.native_builds import build, compilation
from tests.running_server import ROOT

_QEMU = shutil.which("qemu-x86_64")
_TRY = """
import sys
from pathlib import Path
import genai_server_native
from genai_server.engine.model import native_trial
genai_server_native.library = lambda: Path(sys.argv[1])
for name in genai_server_native.instruction_sets():
    native_trial.main(name)
    sys.stdout.write(name + " ")
"""


@pytest.mark.skipif(_QEMU is None or compilation().machine() != "x86_64", reason="qemu-x86_64 is not installed")
@pytest.mark.skipif(not os.environ.get("NATIVE_PROCESSORS"), reason="takes minutes; NATIVE_PROCESSORS=1 runs it")
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("processor", "sets"), [("Nehalem", ["base"]), ("Haswell", ["avx2", "base"])])
@pytest.mark.parametrize("compiler", ["g++", "zig"])
def test_a_processor_without_avx512_runs_what_it_has(
    processor: str, sets: list[str], compiler: str, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    if compiler == "g++":
        monkeypatch.setenv("CXX", "g++")
    elif importlib.util.find_spec("ziglang") is None:
        pytest.skip("ziglang is not installed")
    else:
        monkeypatch.setenv("CXX", f"{sys.executable} -m ziglang c++")
    library = build(pytestconfig, f"by-{compiler}", [])
    command = [str(_QEMU), "-cpu", processor, sys.executable, "-c", _TRY, str(library)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert ended.stdout.split() == sets


def test_the_features_of_this_processor_are_found() -> None:
    """By CPUID, and so with any compiler."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        pytest.skip("the system does not list them")
    flags = {flag for line in lines if line.startswith("flags") for flag in line.split()}
    if not flags:
        pytest.skip("the system does not list them")
    avx2 = flags >= {"avx2", "fma", "f16c", "bmi2"}
    vnni = avx2 and flags >= {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"}
    expected = [("avx512bf16", vnni and "avx512_bf16" in flags), ("avx512vnni", vnni), ("avx2", avx2), ("base", True)]
    found = [name for name in genai_server_native.instruction_sets() if name != "amx"]
    assert found == [name for name, is_there in expected if is_there]


def test_a_compiler_that_is_too_old_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Then the build asks for zig's. g++ 11 does not know _Float16."""
    for name in ("g++", "clang++", "c++"):
        compiler = tmp_path / name
        compiler.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
        compiler.chmod(0o755)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert compilation().find_compiler() == []
    (tmp_path / "clang++").write_text("#!/bin/sh\nexit 0\n", encoding="utf-8")
    assert compilation().find_compiler() == ["clang++"]
