"""The guides in docs/guides, and their code."""

import re
from dataclasses import dataclass

from tests.running_server import ROOT

FOLDER = ROOT / "docs" / "guides"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```\n(?:\n```(?:text|json)\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
SHELLS = ("sh", "bash")


@dataclass(frozen=True)
class Block:
    """A block of code, with the output that follows it on the page; "" without one."""

    language: str
    code: str
    output: str = ""


class Guide:
    """A page, by its name without .md."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.text = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
        self.blocks = [Block(*found) for found in _BLOCK.findall(self.text)]

    def code(self, language: str) -> list[str]:
        """The blocks of a language, in order."""
        return [block.code for block in self.blocks if block.language == language]
