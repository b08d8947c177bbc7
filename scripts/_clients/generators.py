"""Client generators: each reads the server's /openapi.json without a warning, and the generated client is then used."""

from __future__ import annotations

import json
import os
import shutil
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from .client import Check, Client, Place, Registry
from .program import Ended, run

_PROGRAMS = Path(__file__).with_name("programs")
_SCRIPTS = _PROGRAMS.parents[1]
_SECONDS = 300.0
_WITHOUT_WARNING = "reads the document without a warning"


@dataclass(frozen=True)
class Run:
    """One generator in its folder."""

    place: Place

    def document(self) -> Path:
        """The server's document, as a file."""
        path = self.place.folder / "openapi.json"
        with urllib.request.urlopen(f"{self.place.url}/openapi.json", timeout=60) as response:
            path.write_bytes(response.read())
        return path

    def command(self, *command: str | Path) -> Ended:
        """Run a command of the client's environment."""
        path = f"{self.place.commands}{os.pathsep}{os.environ['PATH']}"
        # Generated models are in the folder.
        python = os.pathsep.join(map(str, (self.place.folder, _SCRIPTS)))
        environment = {"PATH": path, "PYTHONPATH": python, "CHECKED_URL": self.place.url}
        name, *arguments = command
        return run([self.place.commands / name, *arguments], environment, self.place.folder, _SECONDS)

    def program(self, name: str) -> list[Check]:
        """The checks of a program in Python, in which each warning is an error."""
        return _checks_of(self.command("python", "-W", "error", _PROGRAMS / name))


def _checks_of(ended: Ended) -> list[Check]:
    found = [json.loads(line) for line in ended.output.splitlines() if line.startswith("{")]
    checks = [Check(each["check"], each["why"]) for each in found]
    return [*checks, Check("the program", ended.why)] if ended.why or not checks else checks


def _silent(ended: Ended, *words: str) -> Check:
    """Whether a generator ended well and neither stream has one of these words."""
    said = f"{ended.output}\n{ended.errors}"
    line = next((line for line in said.splitlines() if any(word in line.lower() for word in words)), "")
    return Check(_WITHOUT_WARNING, ended.why or line)


def _check_python_client(place: Place) -> list[Check]:
    here, made = Run(place), place.folder / "generated_client"
    shutil.rmtree(made, ignore_errors=True)
    ended = here.command(
        "openapi-python-client", "generate", "--path", here.document(), "--output-path", made, "--meta", "none"
    )
    generated = _silent(ended, "warning", "skipping", "will not be generated", "omitted")
    return [generated, *([] if generated.why else here.program("generated_python_client.py"))]


def _check_models(place: Place) -> list[Check]:
    here, made = Run(place), place.folder / "generated_models.py"
    options = ["--input-file-type", "openapi", "--output-model-type", "pydantic_v2.BaseModel"]
    # Its default formatters will change, which it warns of.
    options += ["--formatters", "builtin"]
    ended = here.command("datamodel-codegen", "--input", here.document(), "--output", made, *options)
    generated = _silent(ended, "warning", "error")
    return [generated, *([] if generated.why else here.program("generated_pydantic_models.py"))]


def _check_typescript(place: Place) -> list[Check]:
    here, program = Run(place), "generated_client.mts"
    generated = _silent(
        here.command("openapi-typescript", here.document(), "-o", place.folder / "schema.d.ts"), "warn", "error"
    )
    if generated.why:
        return [generated]
    shutil.copy(_PROGRAMS / program, place.folder)
    shutil.copy(_PROGRAMS / "checks.mjs", place.folder)
    strict = ["--strict", "--target", "es2022", "--module", "nodenext", "--moduleResolution", "nodenext"]
    compiled = here.command("tsc", *strict, "--skipLibCheck", "false", "--types", "node", program)
    first = next((line for line in compiled.output.splitlines() if "error" in line), compiled.why)
    checks = [generated, Check("tsc --strict accepts types and program", first if compiled.status else "")]
    if compiled.status:
        return checks
    ended = run(["node", Path(program).with_suffix(".mjs")], {"CHECKED_URL": place.url}, place.folder, _SECONDS)
    return [*checks, *_checks_of(ended)]


GENERATORS = (
    Client("openapi-python-client", ("openapi-python-client", "pydantic"), _check_python_client),
    Client("datamodel-code-generator", ("datamodel-code-generator", "pydantic"), _check_models),
    Client(
        "openapi-typescript",
        # The version of TypeScript that the generator works with comes as its peer.
        ("openapi-typescript", "openapi-fetch", "@types/node", "zod"),
        _check_typescript,
        Registry.NPM,
    ),
)
