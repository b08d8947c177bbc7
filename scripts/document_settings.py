"""Regenerate the table of docs/settings.md and .env.example from the code (run it with .venv/bin/python)."""

from pathlib import Path

from genai_server.config.settings import Settings, environment_variable, option

ROOT = Path(__file__).parent.parent


def shown(default: object) -> str:
    """A default in the documents' form."""
    if default is None:
        return ""
    return str(default).lower() if isinstance(default, bool) else str(default)


def main() -> None:
    rows, variables = [], []
    for name, field in Settings.model_fields.items():
        default = shown(field.default)
        cell = f"`{default}` " if default else ""
        rows.append(f"| `{environment_variable(name)}` | `{option(name)}` | {cell}| {field.description} |")
        variables.append(f"# {field.description}\n{environment_variable(name)}={default}\n")
    settings = ROOT / "docs" / "settings.md"
    text = settings.read_text(encoding="utf-8")
    begin = text.index(rows[0].split("|")[1])
    begin = text.rindex("\n", 0, begin) + 1
    settings.write_text(text[:begin] + "\n".join(rows) + text[text.index("\n\n", begin) :], encoding="utf-8")
    example = ROOT / ".env.example"
    text = example.read_text(encoding="utf-8")
    begin = text.index(variables[0].splitlines()[0])
    example.write_text(text[:begin] + "\n".join(variables), encoding="utf-8")


if __name__ == "__main__":
    main()
