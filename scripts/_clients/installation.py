"""Installs the newest version of a client below the work folder, and reports it."""

from __future__ import annotations

import json
import shutil
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
    # Many need a newer Node.js than the one here.
    environment.run([*npm, "node@latest"], seconds=_SECONDS)
    if client.postinstall and installed_version(client, folder) != before:
        environment.run([modules / ".bin" / "node", modules / client.postinstall], seconds=_SECONDS)
    return modules / ".bin"


def installed_version(client: Client, folder: Path) -> str:
    """The version of a client's first package in a client's folder or an environment; "" if it is not there."""
    if client.npm:
        about = folder / "node_modules" / client.packages[0] / "package.json"
        return str(json.loads(about.read_text(encoding="utf-8"))["version"]) if about.exists() else ""
    name = client.packages[0].partition("[")[0]
    found = distributions(name=name, path=[str(path) for path in folder.glob("lib/python*/site-packages")])
    return next((each.version for each in found), "")
