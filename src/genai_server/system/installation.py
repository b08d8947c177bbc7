"""Where this copy of the server was installed from (`this_installation`), and the commands that install optional
extras, for messages and for the server's own installer.

The server is not on the package index, so commands name the clone or the wheel from which it was installed.
"""

import importlib.metadata
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

_DISTRIBUTION = "genai-server"
_UNKNOWN = "PATH_TO_WHEEL"


@dataclass(frozen=True)
class Installation:
    """An installed copy of the server: where it was installed from, and the Python environment that it is in. Its
    methods return the commands that install further extras.
    """

    # The clone or the wheel; None if it is unknown or gone.
    source: Path | None
    editable: bool
    # The Python environment that it is in.
    prefix: Path

    def command(self, *extras: str, python: str = sys.executable) -> str:
        """Return the shell command that installs the server with these extras, using pip, into the environment of the
        interpreter `python`.
        """
        return in_shell(self._words(*extras, python=python))

    def extra_command(self, extra: str) -> str:
        """Return the shell command that adds one optional extra to this installation. If the server was installed from
        a clone, the command is the clone's install script.
        """
        script = self._script()
        return self.command(extra) if script is None else f"{script} {extra}"

    def install_command(self, *extras: str, python: str) -> list[str]:
        """Return the command, as a list of words, that adds these extras to the environment of the Python interpreter
        with the path `python`.

        If that is this process's interpreter and the server was installed from a clone, the command is the clone's
        install script. The script installs the package for the device by itself, so the extra `cpu` is left out.
        """
        if python != sys.executable or (script := self._script_path()) is None:
            return self._words(*extras, python=python)
        return [str(script), *(extra for extra in extras if extra != "cpu")]

    def _words(self, *extras: str, python: str) -> list[str]:
        requirement = f"{self.source or _UNKNOWN}[{','.join(extras)}]"
        return [python, "-m", "pip", "install", *(["-e"] if self.editable else []), requirement]

    def device_command(self, extra: str) -> str:
        """Return the shell command that installs the server with the extra of another kind of device, such as `cuda`.
        This needs a new Python environment.
        """
        script = self._script()
        if script is None:
            return f"{self.command(extra)} (in a new environment)"
        return f'cmd /c "set GENAI_EXTRA={extra}&& {script}"' if os.name == "nt" else f"GENAI_EXTRA={extra} {script}"

    def _script(self) -> str | None:
        """Return the path of the install script as it is typed in a shell, if the server was installed from a clone;
        otherwise None.
        """
        path = self._script_path()
        if path is None or self.source is None:
            return None
        script = path.relative_to(self.source)
        if os.name == "nt":
            return str(script if self.source == Path.cwd() else path)
        return f"{'.' if self.source == Path.cwd() else shlex.quote(str(self.source))}/{script.as_posix()}"

    def _script_path(self) -> Path | None:
        if self.source is None or self.prefix != self.source / ".venv":
            return None
        script = self.source / "scripts" / ("install.cmd" if os.name == "nt" else "install")
        return script if script.is_file() else None


def in_shell(words: Sequence[str]) -> str:
    """Return a command, given as a list of words, as one line that can be typed in a shell of this system."""
    return subprocess.list2cmdline(words) if os.name == "nt" else shlex.join(words)


def this_installation() -> Installation:
    """Return the installation of the running server. Its source is None if it is not known."""
    try:
        text = importlib.metadata.distribution(_DISTRIBUTION).read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:  # only the sources are on Python's path
        text = None
    return installation(text, Path(sys.prefix))


def installation(direct_url: str | None, prefix: Path) -> Installation:
    """Return the installation that pip's file `direct_url.json` (PEP 610) describes. `direct_url` is the text of that
    file, or None if there is none; the source is then unknown. `prefix` is the folder of the Python environment.
    """
    noted = json.loads(direct_url or "{}")
    url = urlsplit(noted.get("url", ""))
    source = Path(url2pathname(url.path)) if url.scheme == "file" else None
    if source is None or not source.exists():
        return Installation(None, editable=False, prefix=prefix)
    return Installation(source, editable=bool(noted.get("dir_info", {}).get("editable")), prefix=prefix)
