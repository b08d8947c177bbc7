"""Installs the newest version of a client below the work folder, and reports it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

from _peers.environment import Environment, PeerUnavailable

from .client import Client

_SECONDS = 1800.0


def install(client: Client, folder: Path) -> Path:
    """Install the newest version of a client; returns the folder of its commands. Raises PeerUnavailable."""
    folder.mkdir(parents=True, exist_ok=True)
    if client.npm:
        return _install_with_npm(client, folder)
    python = client.python or sys.executable
    if shutil.which(python) is None:
        raise PeerUnavailable(f"there is no {python}")
    Environment(folder).install(client.packages, "--upgrade", python=python, seconds=_SECONDS)
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
    """The version of a client's first package in a client's folder or an environment; "" if it is not there."""
    if client.npm:
        about = folder / "node_modules" / client.packages[0] / "package.json"
        return str(json.loads(about.read_text(encoding="utf-8"))["version"]) if about.exists() else ""
    name = client.packages[0].partition("[")[0]
    found = distributions(name=name, path=[str(path) for path in folder.glob("lib/python*/site-packages")])
    return next((each.version for each in found), "")
