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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from _clients.applications import APPLICATIONS
from _clients.client import Check, Client, Place
from _clients.coding_agents import CODING_AGENTS
from _clients.installation import install, installed_version
from _clients.libraries import LIBRARIES, QUICK
from _clients.samples import MODELS, SCRIPTED
from _load.server import HOST, REPOSITORY, run_server
from _models.table import table, write_between
from _peers.environment import PeerUnavailable

# By their names on the command line.
CLIENTS = {client.name.replace("`", ""): client for client in (*LIBRARIES, *CODING_AGENTS, *APPLICATIONS)}
# The page with the results, and the name of the marks around their table.
PAGE, MARK = REPOSITORY / "docs" / "evidence" / "compatibility.md", "scripts/check_clients.py --write"
HEAD = ["client", "version", "what was run", "run", "passed", "failed", "why"]
LONGEST = 240


@dataclass(frozen=True)
class Result:
    """The result of a client."""

    name: str
    version: str
    checks: tuple[Check, ...] = ()
    # Why no check was made; "" if some were.
    missing: str = ""

    @property
    def failed(self) -> list[Check]:
        """The checks that failed."""
        return [check for check in self.checks if check.why]


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
    print(table([HEAD, *map(row, results)], markdown=True))
    if arguments.write:
        whole = merged(PAGE.read_text(encoding="utf-8"), results)
        write_between(PAGE, MARK, table(whole, markdown=True) + "\n")
    return 1 if any(result.failed for result in results) else 0


def check(clients: Sequence[Client], work: Path, *, quick: bool) -> list[Result]:
    """Install and run clients one after another, on two servers."""
    results = []
    with served(work / "server-scripted", SCRIPTED) as url, served(work / "server-models", MODELS) as models_url:
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
            # A run of all clients takes an hour. If it is ended early, the results so far have been printed.
            print(" | ".join(row(results[-1])), file=sys.stderr, flush=True)
    return results


@contextmanager
def served(folder: Path, settings: dict[str, str]) -> Iterator[str]:
    """The URL of a server with these settings, whose files go to the folder. Raises DoesNotStart."""
    folder.mkdir(exist_ok=True)
    with run_server(folder, settings | {"GENAI_FILES_DIR": str(folder / "files")}, 120) as server:
        yield f"http://{HOST}:{server.port}"


def row(result: Result) -> list[str]:
    """The row of the table for a client."""
    if result.missing:
        return [result.name, result.version or "–", "–", "–", "–", "–", cell(f"not run: {result.missing}")]
    failed = result.failed
    names = ", ".join(dict.fromkeys(check.name for check in result.checks))
    why = "; ".join(f"{check.name}: {check.why}" for check in failed)
    counts = [len(result.checks), len(result.checks) - len(failed), len(failed)]
    return [result.name, result.version, cell(names), *map(str, counts), cell(why)]


def cell(text: str) -> str:
    """One short line without characters that would end a cell."""
    line = " ".join(text.replace("|", "/").replace("<", "&lt;").split())
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}…"


def merged(page: str, results: Sequence[Result]) -> list[list[str]]:
    """The table in a page's text, with these results. Rows of other clients stay."""
    old = page.partition(f"<!-- {MARK} -->\n")[2].partition("<!-- end of")[0].strip().splitlines()[2:]
    found = {result.name: row(result) for result in results}
    kept = [[text.strip() for text in line.strip("|").split(" |")] for line in old]
    return [HEAD, *(found.pop(one[0]) if one[0] in found else one for one in kept), *found.values()]


if __name__ == "__main__":
    sys.exit(main())
