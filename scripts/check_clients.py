"""Run third-party clients and coding agents against this server, and report what works.

The newest version of each is installed from PyPI or npm into a folder of its own below the work folder, and runs by the
lines of docs/clients.md or of a guide where there are some. Most talk to the scripted model, which does what their
prompts say. Coding agents also work for ten turns, and what they send is rendered with the chat templates of other
models. A client that cannot be installed stays in the table with the reason. Linux only.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from _clients.applications import APPLICATIONS
from _clients.client import Client, Place, Result
from _clients.coding_agents import CODING_AGENTS
from _clients.installation import install, installed_version
from _clients.libraries import LIBRARIES, QUICK
from _clients.report import MARK, merged, rows
from _clients.samples import MODELS, SCRIPTED
from _load.server import HOST, REPOSITORY, run_server
from _models.table import table, write_between
from _peers.environment import PeerUnavailable

# By their names on the command line.
CLIENTS = {client.name.replace("`", ""): client for client in (*LIBRARIES, *CODING_AGENTS, *APPLICATIONS)}
# Their settings, by the names of their folders.
SERVERS = {"server-scripted": SCRIPTED, "server-models": MODELS}
PAGE = REPOSITORY / "docs" / "evidence" / "compatibility.md"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", metavar="NAME,NAME…", help=f"default: {', '.join(CLIENTS)}")
    parser.add_argument(
        "--work",
        type=Path,
        default=Path(tempfile.gettempdir()) / "genai-clients",
        metavar="DIR",
        help="where the clients are installed (default: %(default)s)",
    )
    parser.add_argument("--quick", action="store_true", help="the client of this environment; nothing is installed")
    parser.add_argument("--write", action="store_true", help=f"update the table of evidence/{PAGE.name}")
    arguments = parser.parse_args()
    names = arguments.clients.split(",") if arguments.clients else list(CLIENTS)
    if unknown := [name for name in names if name not in CLIENTS]:
        parser.error(f"{', '.join(unknown)}: known are {', '.join(CLIENTS)}")
    clients = QUICK if arguments.quick else [CLIENTS[name] for name in names]
    work = arguments.work.absolute()
    work.mkdir(parents=True, exist_ok=True)
    results = check(clients, work, quick=arguments.quick)
    print(table(rows(results), markdown=True))
    if arguments.write:
        whole = merged(PAGE.read_text(encoding="utf-8"), results)
        write_between(PAGE, MARK, table(whole, markdown=True) + "\n")
    return 1 if any(result.failed for result in results) else 0


def check(clients: Sequence[Client], work: Path, *, quick: bool) -> list[Result]:
    """Install and run clients one after another, on two servers."""
    results = []
    with ExitStack() as running:
        url, models_url = (_serve(running, work / name, settings) for name, settings in SERVERS.items())
        for client in clients:
            print(client.name, file=sys.stderr, flush=True)
            folder = work / "".join(letter if letter.isalnum() else "-" for letter in client.name.lower()).strip("-")
            folder.mkdir(exist_ok=True)
            try:
                commands = Path(sys.executable).parent if quick else install(client, folder)
                version = installed_version(client, Path(sys.prefix) if quick else folder)
                checks = client.check(Place(folder, commands, url, models_url))
            except (PeerUnavailable, OSError, ValueError) as error:
                results.append(Result(client.name, "", missing=str(error)))
            else:
                results.append(Result(client.name, version, tuple(checks)))
    return results


def _serve(running: ExitStack, folder: Path, settings: dict[str, str]) -> str:
    folder.mkdir(exist_ok=True)
    server = running.enter_context(run_server(folder, settings | {"GENAI_FILES_DIR": str(folder / "files")}, 120))
    return f"http://{HOST}:{server.port}"


if __name__ == "__main__":
    sys.exit(main())
