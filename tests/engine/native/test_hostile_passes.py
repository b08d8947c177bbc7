"""Hostile inputs of the operators, with sanitizers: a pass is computed or refused, and never ends the process.

NATIVE_EXAMPLES is the number of passes.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.native.native_builds import build
from tests.running_server import ROOT

EXAMPLES = int(os.environ.get("NATIVE_EXAMPLES", "400"))
_SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")


def _runtime(name: str) -> str:
    """The sanitizer's library of g++, which has to be loaded first."""
    found = subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return found.stdout.strip()


@pytest.mark.timeout(300 + EXAMPLES)
def test_hostile_passes_are_refused_or_computed(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "g++")
    try:
        runtimes = [_runtime("libasan.so"), _runtime("libubsan.so")]
    except OSError:
        pytest.skip("g++ is not installed")
    if not all(Path(runtime).is_absolute() for runtime in runtimes):
        pytest.skip("the sanitizers of g++ are not installed")
    library = build(pytestconfig, "sanitized", ["-O1", "-g", "-DEMULATED_AMX", *_SANITIZERS])
    environment = os.environ | {
        "LD_PRELOAD": " ".join(runtimes),
        # Scratch memory lives as long as the process. What a pass would need may be more than there is.
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
    }
    command = [sys.executable, "-m", "tests.engine.native.hostile_passes", str(library), "0", str(EXAMPLES)]
    ended = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-5000:]
    refused, computed = map(int, ended.stdout.split())
    assert min(refused, computed) > EXAMPLES / 4
