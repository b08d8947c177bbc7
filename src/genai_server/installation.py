"""Where this copy of the server was installed from, and the command that adds an extra to it.

The server is not on the package index, so a command names the clone or the wheel of the installation.
"""

import importlib.metadata
import json
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

_DISTRIBUTION = "genai-server"
_UNKNOWN = "PATH_TO_WHEEL"


@dataclass(frozen=True)
class Installation:
    """An installed copy of the server."""

    # The clone or the wheel; None if it is unknown or gone.
    source: Path | None
    editable: bool
    # The Python environment that it is in.
    prefix: Path

    def command(self, *extras: str, python: str = sys.executable) -> str:
        """The command that installs the server with these extras into the environment of `python`."""
        asked = f"{self.source or _UNKNOWN}[{','.join(extras)}]"
        words = [python, "-m", "pip", "install", *(["-e"] if self.editable else []), asked]
        return subprocess.list2cmdline(words) if os.name == "nt" else shlex.join(words)

    def extra_command(self, extra: str) -> str:
        """The command that adds one extra to this installation: the clone's script if there is one."""
        script = self._script()
        return self.command(extra) if script is None else f"{script} {extra}"

    def device_command(self, extra: str) -> str:
        """The command that installs the extra of another device, for which the environment has to be made anew."""
        script = self._script()
        if script is None:
            return f"{self.command(extra)} (in a new environment)"
        return f'cmd /c "set GENAI_EXTRA={extra}&& {script}"' if os.name == "nt" else f"GENAI_EXTRA={extra} {script}"

    def _script(self) -> str | None:
        """The script that installs a clone into its own environment; None without one."""
        if self.source is None or self.prefix != self.source / ".venv":
            return None
        script = Path("scripts", "install.cmd" if os.name == "nt" else "install")
        if not (self.source / script).is_file():
            return None
        if os.name == "nt":
            return str(script if self.source == Path.cwd() else self.source / script)
        return f"{'.' if self.source == Path.cwd() else shlex.quote(str(self.source))}/{script.as_posix()}"


def this_installation() -> Installation:
    """The running installation."""
    try:
        text = importlib.metadata.distribution(_DISTRIBUTION).read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:  # only the sources are on Python's path
        text = None
    return installation(text, Path(sys.prefix))


def installation(direct_url: str | None, prefix: Path) -> Installation:
    """The installation that pip has recorded in `direct_url.json` (PEP 610)."""
    noted = json.loads(direct_url or "{}")
    url = urlsplit(noted.get("url", ""))
    source = Path(url2pathname(url.path)) if url.scheme == "file" else None
    if source is None or not source.exists():
        return Installation(None, editable=False, prefix=prefix)
    return Installation(source, editable=bool(noted.get("dir_info", {}).get("editable")), prefix=prefix)
