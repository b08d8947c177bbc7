"""Regenerate the tables of docs/settings.md and .env.example from the code (run it with .venv/bin/python)."""

from pathlib import Path

from genai_server.config.setting_form import environment_variable
from genai_server.config.setting_groups import GROUPS
from genai_server.config.settings import Settings

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- settings -->\n", "<!-- end of settings -->\n"
EXAMPLE_HEAD = "# Copy to .env and change what you need. An empty value counts as not given.\n"


def shown(default: object) -> str:
    """A default in the documents' form."""
    if default is None:
        return ""
    return str(default).lower() if isinstance(default, bool) else str(default)


def tables() -> str:
    """A table for each group, for docs/settings.md."""
    lines = []
    for title, names in GROUPS.items():
        lines += [f"## {title}", "", "| setting | default | meaning |", "|---|---|---|"]
        for name in names:
            field = Settings.model_fields[name]
            default = f"`{shown(field.default)}` " if shown(field.default) else ""
            lines.append(f"| `{environment_variable(name)}` | {default}| {field.description} |")
        lines.append("")
    return "\n".join(lines)


def example() -> str:
    """.env.example: all settings with their defaults."""
    lines = [EXAMPLE_HEAD]
    for title, names in GROUPS.items():
        lines.append(f"# ---- {title} ----\n")
        for name in names:
            field = Settings.model_fields[name]
            lines.append(f"# {field.description}\n{environment_variable(name)}={shown(field.default)}\n")
    return "\n".join(lines)


def main() -> None:
    page = ROOT / "docs" / "settings.md"
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    page.write_text(before + BEGIN + tables() + END + rest.partition(END)[2], encoding="utf-8")
    (ROOT / ".env.example").write_text(example(), encoding="utf-8")


if __name__ == "__main__":
    main()
