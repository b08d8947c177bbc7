"""Writes deploy/constraints.txt, the versions that the container image installs: run it to update the image.

usage: python3.12 scripts/pin_dependencies.py     with the Python that the Dockerfile names, on Linux

pip resolves the package with the extras of the image, and what it chooses is written down. Nothing is installed; a
gigabyte may be downloaded, where the index gives a library's requirements with the library only.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[1]
_TARGET = _ROOT / "deploy" / "constraints.txt"
# `export` is omitted: a server does not need PyTorch. Linux has these devices.
_EXTRAS = ("cpu", "cuda", "audio", "hub", "otel", "kv-events", "mcp", "bench")
# What builds the packages themselves: the image has no compiler for the operators.
_BACKENDS = ("hatchling", "ziglang")
_OURS = "genai-server"


def main() -> None:
    """Resolve and write."""
    wanted = re.search(r"^FROM python:(\d+\.\d+)", (_ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    have = f"{sys.version_info.major}.{sys.version_info.minor}"
    if wanted is None or wanted[1] != have or sys.platform != "linux":
        sys.exit(f"the image has Python {wanted and wanted[1]} on Linux; this is {have} on {sys.platform}")
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        subprocess.run([*command, "--report", report, f"{_ROOT}[{','.join(_EXTRAS)}]", *_BACKENDS], check=True)
        _TARGET.write_text(constraints(json.loads(report.read_text(encoding="utf-8"))), encoding="utf-8")
    print(f"written: {_TARGET.relative_to(_ROOT)}")


def constraints(report: dict[str, Any]) -> str:
    """The lines for the packages in a report of pip."""
    chosen = [one["metadata"] for one in report["install"]]
    found = {re.sub(r"[-_.]+", "-", one["name"]).lower(): one["version"] for one in chosen}
    found.pop(_OURS, None)
    pins = "".join(f"{name}=={version}\n" for name, version in sorted(found.items()))
    extras = ", ".join(_EXTRAS)
    return f"# Made by scripts/pin_dependencies.py: what the image installs, with the extras {extras}.\n{pins}"


if __name__ == "__main__":
    main()
