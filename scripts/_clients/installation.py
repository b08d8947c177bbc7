"""Installs a client below the work folder, and reports its version."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path

from _peers.environment import Environment, PeerUnavailable

from .client import Client, Registry

_SECONDS = 900.0


def install(client: Client, folder: Path) -> Path:
    """Install a client if necessary; returns the folder of its commands. Raises PeerUnavailable."""
    folder.mkdir(parents=True, exist_ok=True)
    if client.registry is Registry.NPM:
        return _install_with_npm(client, folder)
    own = Path(sys.executable).with_name("uv")
    found = str(own) if own.exists() else shutil.which("uv")
    Environment(folder).install(client.packages, uv=Path(found) if found else None, seconds=_SECONDS)
    return folder / "bin"


def _install_with_npm(client: Client, folder: Path) -> Path:
    environment, modules = Environment(folder), folder / "node_modules"
    if not all((modules / package).exists() for package in client.packages):
        npm = ["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--ignore-scripts"]
        environment.run([*npm, *client.packages], seconds=_SECONDS)
        if client.postinstall:
            environment.run(["node", modules / client.postinstall], seconds=_SECONDS)
    return modules / ".bin"


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
