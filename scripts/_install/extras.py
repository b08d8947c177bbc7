"""What scripts/install and scripts/install.cmd ask of Python, in the folder of the clone.

usage: extras.py DEVICE [EXTRA]...             refuses unknown extras with status 1 and the reason
       extras.py --missing DEVICE [EXTRA]...   status 1 if one is not installed, or pyproject.toml is newer
"""

import os
import sys
import tomllib
from pathlib import Path

_DEVICES = {"cpu", "cuda", "directml", "winml"}
_COMMANDS = {"nt": r'cmd /c "set GENAI_EXTRA={}&& scripts\install.cmd"', "posix": "GENAI_EXTRA={} ./scripts/install"}


def main(arguments: list[str]) -> int | str:
    """The exit status, or the reason of a refusal."""
    if arguments[0] == "--missing":
        return int(is_missing(Path(), arguments[2:]))
    return refusal(Path("pyproject.toml"), *arguments) or 0


def refusal(project: Path, device: str, *extras: str) -> str:
    """Why these extras cannot be installed; "" if they can."""
    known = set(tomllib.loads(project.read_text(encoding="utf-8"))["project"]["optional-dependencies"])
    devices = known & _DEVICES
    if device not in devices:
        return f"GENAI_EXTRA={device}: known are {', '.join(sorted(devices))}"
    for extra in extras:
        if extra in devices:
            return f"{extra} is for a device: {_COMMANDS[os.name].format(extra)}"
        if extra not in known:
            return f"there is no extra {extra}; known are {', '.join(sorted(known - devices))}"
    return ""


def is_missing(clone: Path, extras: list[str]) -> bool:
    """Whether the package or an extra has to be installed. `installed` files in .venv tell when each was."""
    changed = (clone / "pyproject.toml").stat().st_mtime
    marks = [clone / ".venv" / name for name in ("installed", *(f"installed-{extra}" for extra in extras))]
    return any(not mark.is_file() or mark.stat().st_mtime < changed for mark in marks)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
