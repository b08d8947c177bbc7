"""Installs the newest version of a client below the work folder, and reports it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path

from _peers.environment import Environment, PeerUnavailable

from .client import Client, Registry

_SECONDS = 900.0


def install(client: Client, folder: Path) -> Path:
    """Install the newest version of a client; returns the folder of its commands. Raises PeerUnavailable."""
    folder.mkdir(parents=True, exist_ok=True)
    if client.registry is Registry.NPM:
        return _install_with_npm(client, folder)
    own = Path(sys.executable).with_name("uv")
    found = str(own) if own.exists() else shutil.which("uv")
    environment = Environment(folder)
    if client.python and not environment.python.exists():
        environment.run([client.python, "-m", "venv", "--without-pip", folder])
    environment.install(client.packages, "--upgrade", uv=Path(found) if found else None, seconds=_SECONDS)
    return folder / "bin"


def _install_with_npm(client: Client, folder: Path) -> Path:
    environment, modules = Environment(folder), folder / "node_modules"
    before = installed_version(client, folder)
    npm = ["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund"]
    # Without a version, npm takes an older one whose Node.js is the one here.
    environment.run([*npm, "--ignore-scripts", *(f"{package}@latest" for package in client.packages)], seconds=_SECONDS)
    if _needed_node(modules / client.packages[0]) > _node_here():
        environment.run([*npm, "node@latest"], seconds=_SECONDS)
    if client.postinstall and installed_version(client, folder) != before:
        own = modules / ".bin" / "node"
        environment.run([own if own.exists() else "node", modules / client.postinstall], seconds=_SECONDS)
    return modules / ".bin"


def _needed_node(package: Path) -> int:
    """The first major version of Node.js that a package runs on; 0 if it names none."""
    engines = json.loads((package / "package.json").read_text(encoding="utf-8")).get("engines", {})
    found = re.search(r"\d+", str(engines.get("node", "")))
    return int(found[0]) if found else 0


def _node_here() -> int:
    """The major version of this machine's Node.js. Raises PeerUnavailable without one."""
    try:
        said = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        raise PeerUnavailable("there is no Node.js") from None
    return int(said.strip().removeprefix("v").partition(".")[0])


def installed_version(client: Client, folder: Path) -> str:
    """The version of a client's first package; "" if it is not known."""
    if client.registry is Registry.NPM:
        try:
            text = (folder / "node_modules" / client.packages[0] / "package.json").read_text(encoding="utf-8")
        except OSError:
            return ""
        return str(json.loads(text)["version"])
    found = distributions(name=_name(client), path=[str(path) for path in folder.glob("lib/python*/site-packages")])
    return next((each.version for each in found), "")


def own_version(client: Client) -> str:
    """The version of a client in this interpreter's environment. Raises PeerUnavailable if it is not there."""
    try:
        return version(_name(client))
    except PackageNotFoundError:
        raise PeerUnavailable("it is not in this environment") from None


def _name(client: Client) -> str:
    return client.packages[0].partition("[")[0]


def commands_here() -> Path:
    """The commands of this interpreter's environment."""
    return Path(sys.executable).parent


def names(clients: Sequence[Client]) -> list[str]:
    """The names of clients on the command line."""
    return [client.name.replace("`", "") for client in clients]
