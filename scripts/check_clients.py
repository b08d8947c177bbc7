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
from _clients.client import Client, Model, Place, Result
from _clients.coding_agents import CODING_AGENTS
from _clients.installation import commands_here, install, installed_version, names, own_version
from _clients.libraries import LIBRARIES, QUICK
from _clients.report import merged, placed, rows
from _clients.samples import IMAGES_MODEL, SPEECH_DIRECTORY, SPEECH_MODEL
from _load.server import DEMO, HOST, REPOSITORY, run_server
from _models.table import table
from _peers.environment import PeerUnavailable
from _templates.replay import faults

CLIENTS = (*LIBRARIES, *CODING_AGENTS, *APPLICATIONS)
SETTINGS = {
    # A token is a byte, and the first prompt of a coding agent has 120,000.
    Model.SCRIPTED: {
        "GENAI_DEVICE": "scripted",
        "GENAI_MAX_LENGTH": "1000000",
        "GENAI_MAX_QUEUE_TOKENS": "2000000",
        "GENAI_MAX_BODY_BYTES": "16000000",
    },
    Model.POOLED: {"GENAI_MODELS": f"vectors={DEMO}-embeddings,scores={DEMO}-reranker"},
    Model.IMAGES: {"GENAI_MODELS": f"{IMAGES_MODEL}={REPOSITORY}/tests/built_models/qwen-3-vl-images"},
    Model.SPEECH: {"GENAI_MODELS": f"{SPEECH_MODEL}={SPEECH_DIRECTORY}"},
}
PAGE = REPOSITORY / "docs" / "evidence" / "compatibility.md"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", metavar="NAME,NAME…", help=f"default: {', '.join(names(CLIENTS))}")
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
    clients = _chosen(parser, QUICK if arguments.quick else CLIENTS, arguments.clients)
    work = arguments.work.absolute()
    work.mkdir(parents=True, exist_ok=True)
    results = check(clients, work, quick=arguments.quick)
    print(table(rows(results), markdown=True))
    if arguments.write:
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(placed(page, table(merged(page, results), markdown=True)), encoding="utf-8")
    return 1 if any(result.failed for result in results) else 0


def _chosen(parser: argparse.ArgumentParser, clients: Sequence[Client], wanted: str | None) -> Sequence[Client]:
    if wanted is None:
        return clients
    known = dict(zip(names(clients), clients, strict=True))
    if unknown := [name for name in wanted.split(",") if name not in known]:
        parser.error(f"{', '.join(unknown)}: known are {', '.join(known)}")
    return [known[name] for name in wanted.split(",")]


def check(clients: Sequence[Client], work: Path, *, quick: bool) -> list[Result]:
    """Install and run clients one after another. A server is started for the first that needs it."""
    results = []
    with ExitStack() as running:
        urls: dict[Model, str] = {}
        for client in clients:
            print(client.name, file=sys.stderr, flush=True)
            folder = _folder(work, client)
            try:
                commands = commands_here() if quick else install(client, folder)
                version = own_version(client) if quick else installed_version(client, folder)
                for model in (client.model, *([Model.IMAGES] if client.images else [])):
                    if model not in urls:
                        urls[model] = _serve(running, model, work)
                images_url = urls[Model.IMAGES] if client.images else ""
                folder.mkdir(exist_ok=True)
                checks = client.check(Place(folder, commands, urls[client.model], images_url, faults))
            except (PeerUnavailable, OSError, ValueError) as error:
                results.append(Result(client.name, "", missing=str(error)))
            else:
                results.append(Result(client.name, version, tuple(checks)))
    return results


def _serve(running: ExitStack, model: Model, work: Path) -> str:
    folder = work / f"server-{model.value}"
    folder.mkdir(exist_ok=True)
    settings = SETTINGS[model] | {"GENAI_FILES_DIR": str(folder / "files")}
    server = running.enter_context(run_server(folder, settings))
    return f"http://{HOST}:{server.port}"


def _folder(work: Path, client: Client) -> Path:
    (name,) = names([client])
    return work / "".join(letter if letter.isalnum() else "-" for letter in name.lower()).strip("-")


if __name__ == "__main__":
    sys.exit(main())
