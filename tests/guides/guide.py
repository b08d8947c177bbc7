"""The guides in docs/guides, and README, with their code."""

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
    """A page, by its name without .md: README, or one of docs/guides."""

    def __init__(self, name: str) -> None:
        self.name = name
        folder = ROOT if name == "README" else FOLDER
        self.text = (folder / f"{name}.md").read_text(encoding="utf-8")
        self.blocks = [Block(*found) for found in _BLOCK.findall(self.text)]

    def code(self, language: str) -> list[str]:
        """The blocks of a language, in order."""
        return [block.code for block in self.blocks if block.language == language]

    @property
    def left_out(self) -> list[str]:
        """Regular expressions for the lines that no test runs; docs/evidence/README.md lists how they begin."""
        text = (ROOT / "docs" / "evidence" / "README.md").read_text(encoding="utf-8")
        row = re.search(rf"^\| {self.name} \| (.*?) \|", text, re.MULTILINE)
        return [re.escape(start) + r"(?!\w)" for start in re.findall(r"`([^`]+)`", row[1])] if row else []
