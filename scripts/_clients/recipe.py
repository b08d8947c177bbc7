"""The commands of docs/clients.md and of the guides to clients, which also start the clients here."""

from __future__ import annotations

import re
from pathlib import Path

_DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = (_DOCS / "clients.md", _DOCS / "guides" / "coding-agents.md", _DOCS / "guides" / "open-webui.md")
SERVER = "http://127.0.0.1:8002"
PROMPT = '"say hello"'
_BLOCK = re.compile(r"```(sh|python)\n(.*?)```", re.DOTALL)


def section(heading: str) -> str:
    """The text below a heading of one of the pages. Raises ValueError without that heading."""
    for page in PAGES:
        _, found, rest = page.read_text(encoding="utf-8").partition(f"\n## {heading}\n")
        if found:
            return rest.partition("\n## ")[0]
    raise ValueError(f"no page about clients has a heading {heading}")


def recipe(heading: str, url: str = SERVER, *options: str) -> str:
    """The first lines of code below a heading, for the running server at `url`.

    Commands of a shell take their prompt from $PROMPT, followed by these options. Raises ValueError without any.
    """
    block = _BLOCK.search(section(heading))
    if block is None:
        raise ValueError(f"there are no lines of code below {heading}")
    language, lines = block[1], block[2].replace(SERVER, url)
    return lines.replace(PROMPT, " ".join(['"$PROMPT"', *options])) if language == "sh" else lines
