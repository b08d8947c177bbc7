"""The virtual environment of the model scripts: made on first use, then entered."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
ENVIRONMENT = REPOSITORY / ".venv-models"
EXTRA = "models"


def ensure_environment() -> None:
    """Return when running inside `.venv-models`; otherwise prepare it and run this script again in it."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # A thread that spins at a barrier stalls training when another program needs its core.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    prepare()
    if Path(sys.prefix).resolve() == ENVIRONMENT.resolve():
        return
    command = [str(python()), *sys.argv]
    if os.name == "nt":  # execv there returns to the shell before the script ends
        raise SystemExit(subprocess.call(command))
    os.execv(command[0], command)


def prepare() -> None:
    """Create the environment and install the extra, unless both have been done for this very list."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted: list[str] = project["optional-dependencies"][EXTRA]
    stamp = ENVIRONMENT / "installed-extra"
    fingerprint = hashlib.sha256("\n".join(wanted).encode()).hexdigest()
    if stamp.is_file() and stamp.read_text() == fingerprint:
        return
    print(f"installing {', '.join(wanted)} into {ENVIRONMENT}", file=sys.stderr, flush=True)
    if not python().exists():
        venv.create(ENVIRONMENT, with_pip=True)
    subprocess.run([str(python()), "-m", "pip", "install", "--quiet", *wanted], check=True)
    stamp.write_text(fingerprint)


def python() -> Path:
    """The environment's interpreter."""
    return ENVIRONMENT / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
