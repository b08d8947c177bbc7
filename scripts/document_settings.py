"""Regenerate the tables of docs/settings.md, docs/evidence/options.md and .env.example from the code.

Run it with .venv/bin/python.
"""

from collections.abc import Iterable
from pathlib import Path

from _models.table import write_between

from genai_server.config.setting_form import environment_variable
from genai_server.config.settings import SETTING_GROUPS, Settings
from genai_server.options.providers import PROVIDERS
from genai_server.options.session import ENTRIES, RUN, SESSION
from genai_server.options.table import Reach, Row

ROOT = Path(__file__).parent.parent
EXAMPLE_HEAD = "# Copy to .env and change what you need. An empty value counts as not given.\n"
REACHES = {Reach.BOTH: "both", Reach.GENERATOR: "onnxruntime-genai's model", Reach.BATCHED: "the batched session"}


def shown(default: object) -> str:
    """A default in the documents' form."""
    if default is None:
        return ""
    return str(default).lower() if isinstance(default, bool) else str(default)


def tables() -> str:
    """A table for each group, for docs/settings.md."""
    lines = []
    for title, names in SETTING_GROUPS.items():
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
    for title, names in SETTING_GROUPS.items():
        lines.append(f"# ---- {title} ----\n")
        for name in names:
            field = Settings.model_fields[name]
            lines.append(f"# {field.description}\n{environment_variable(name)}={shown(field.default)}\n")
    return "\n".join(lines)


def options() -> str:
    """Tables of all options, for docs/evidence/options.md."""
    lines = ["## Session options", "", "In `[session]`.", ""]
    lines += options_table(row for row in (*SESSION, *RUN, *ENTRIES) if not row.impossible)
    for known in PROVIDERS.values():
        if known.rows:
            lines += ["", f"## {known.name}", "", f"In `[provider.{known.name}]`.", "", *options_table(known.rows)]
    return "\n".join(lines) + "\n"


def options_table(rows: Iterable[Row]) -> list[str]:
    """A table of options; those with the same values and reach share a row."""
    groups: dict[str, list[str]] = {}
    for row in rows:
        others = ", ".join(f"`{name}`" for name in row.also)
        name = f"`{row.name}`" + (f" (also {others})" if others else "")
        groups.setdefault(f"{_values(row)} | {REACHES[row.reach]}", []).append(name)
    lines = ["| options | values | reaches |", "|---|---|---|"]
    return [*lines, *(f"| {', '.join(names)} | {rest} |" for rest, names in groups.items())]


def _values(row: Row) -> str:
    """The values of an option."""
    if row.impossible:
        return f"cannot be set: {row.impossible}"
    if row.name == "level":
        (name,) = {option for options in row.means.values() for option in options}
        values = ", ".join(f"{key}: {options[name]}" for key, options in row.means.items())
        return f"`{name}` in Triton's numbers, {values}, any other number: all"
    return row.kind.expected


def main() -> None:
    write_between(ROOT / "docs" / "settings.md", "settings", tables())
    write_between(ROOT / "docs" / "evidence" / "options.md", "options", options())
    (ROOT / ".env.example").write_text(example(), encoding="utf-8")


if __name__ == "__main__":
    main()
