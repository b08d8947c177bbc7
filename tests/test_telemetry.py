"""ONNX Runtime's telemetry never starts: nothing is written below HOME, and all child processes inherit the switch."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.fake_builder import fake_builder
from tests.local_hub import HubRepository, run_hub
from tests.running_server import (
    DEMO,
    ROOT,
    RunningServer,
    body,
    clean_environment,
    run_python,
    run_server,
    serve_with_uvicorn,
    wait_until,
)

VARIABLE = "ORT_DISABLE_TELEMETRY"
# Each Python process records what it inherited, and the variable's value at its first import of the libraries.
WITNESS = f"""
import json, os, sys
def note(**what):
    with open(os.path.join(os.path.dirname(__file__), "notes"), "a") as file:
        file.write(json.dumps(dict(what, pid=os.getpid(), parent=os.getppid())) + "\\n")
class Finder:
    def find_spec(self, name, *rest):
        if name in ("onnxruntime", "onnxruntime_genai"):
            note(imported=name, variable=os.environ.get("{VARIABLE}"))
sys.meta_path.insert(0, Finder())
note(started=sys.orig_argv[1:], variable=os.environ.get("{VARIABLE}"))
"""


class Home:
    """An empty home directory, and records of the processes that used it."""

    def __init__(self, folder: Path, libraries: Path | None = None) -> None:
        self.path = folder / "home"
        self.path.mkdir()
        self._witness = folder / "witness"
        self._witness.mkdir()
        (self._witness / "sitecustomize.py").write_text(WITNESS, encoding="utf-8")
        paths = [str(self._witness), str(ROOT / "src"), *([str(libraries)] if libraries else [])]
        self.variables = {
            **{name: "" for name in os.environ if name.startswith("XDG_")},
            # Variables that the tests got by importing the package must not count here.
            VARIABLE: "",
            "HOME": str(self.path),
            "PYTHONPATH": os.pathsep.join(paths),
            "GENAI_MODEL_DIR": str(DEMO),
            "GENAI_CACHE_DIR": "none",
            "GENAI_MODELS_DIR": str(folder / "models"),
            "GENAI_PROFILE_DIR": str(folder / "profiles"),
            "MPLCONFIGDIR": str(folder / "matplotlib"),
        }

    def run(self, *command: str, said: str = "", **environment: str) -> None:
        """Run Python to its end."""
        environment = clean_environment(**self.variables, **environment)
        run_python(*command, environment=environment, said=said, seconds=200)

    def notes(self, key: str) -> list[dict[str, Any]]:
        lines = (self._witness / "notes").read_text(encoding="utf-8").splitlines()
        return [note for note in map(json.loads, lines) if key in note]

    def check(self, *children: str) -> None:
        """Check that nothing was written, that no library was imported before the variable was set, and that these
        children had it.
        """
        assert list(self.path.rglob("*")) == []
        assert [note for note in self.notes("imported") if note["variable"] != "1"] == []
        started = self.notes("started")
        ours = {note["pid"] for note in started}
        inherited = [note for note in started if note["parent"] in ours]
        assert [note for note in inherited if note["variable"] != "1"] == []
        for child in children:
            assert any(child in note["started"] for note in inherited), (child, started)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


ENGINE = "genai_server.engine.process"


def test_serve_starts_none(home: Home, own_folder: Path) -> None:
    # run_server itself sets these two.
    settings = home.variables.keys() - {"GENAI_CACHE_DIR", "GENAI_PROFILE_DIR"}
    given = {name: home.variables[name] for name in settings}
    with run_server(own_folder, "--workers", "2", settings=given) as server:
        assert server.chat("hello", max_tokens=4).status_code == 200
        children = psutil.Process(server.process.pid).children(recursive=True)
        assert {child.environ().get(VARIABLE) for child in children} == {"1"}
    home.check(ENGINE)


def test_plain_uvicorn_starts_none(home: Home, own_folder: Path) -> None:
    with serve_with_uvicorn(own_folder, **home.variables) as (_, url, _):
        wait_until(lambda: _answers(f"{url}/v1/chat", body("hello", max_tokens=4)))
    home.check(ENGINE)


def _answers(url: str, content: Mapping[str, Any]) -> bool:
    try:
        return httpx.post(url, json=content, timeout=90).status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.parametrize(
    ("command", "said", "children"),
    [
        ("genai_server doctor --port 0", "", [ENGINE, "genai_server.engine.model.provider_trial"]),
        (f"genai_server chat {DEMO}", "hello\n/quit\n", ["serve", ENGINE]),
        (f"genai_server.engine.bare_loop {DEMO} --prompt-tokens 8 --output-tokens 2", "", []),
    ],
    ids=["doctor", "chat", "the bare loop by itself"],
)
def test_a_command_starts_none(home: Home, command: str, said: str, children: list[str]) -> None:
    home.run("-m", *command.split(), said=said)
    home.check(*children)
    assert children or home.notes("imported")


def test_the_loop_that_bench_measures_starts_none(home: Home, scripted: RunningServer) -> None:
    sizes = ["--rounds", "1", "--requests", "1", "--prompt-tokens", "16", "--output-tokens", "4", "--concurrency", "1"]
    home.run("-m", "genai_server", "bench", "--url", scripted.url, "--library", str(DEMO), *sizes)
    home.check("genai_server.engine.bare_loop")


@pytest.mark.parametrize(
    ("precision", "program"),
    [("int4", str(ROOT / "src/genai_server/hub/build_graph.py")), ("fp32", "onnxruntime_genai.models.builder")],
)
def test_the_builder_of_export_starts_none(precision: str, program: str, tmp_path: Path) -> None:
    home = Home(tmp_path, fake_builder(tmp_path / "libraries"))
    source = tmp_path / "tiny"
    source.mkdir()
    (source / "config.json").write_text("{}", encoding="utf-8")
    home.run("-m", "genai_server", "export", str(source), "--precision", precision)
    home.check(program)


def test_pull_starts_none(home: Home) -> None:
    files = {f"cpu/{path.name}": path.read_bytes() for path in DEMO.iterdir() if path.is_file()}
    with run_hub() as hub:
        hub.repositories["org/tiny"] = HubRepository(files)
        home.run("-m", "genai_server", "pull", "org/tiny", HF_ENDPOINT=hub.url)
    home.check()


@pytest.mark.parametrize(("wanted", "variable"), [("true", "0"), ("false", "1")])
def test_telemetry_is_on_only_if_enabled_and_only_in_engines(tmp_path: Path, wanted: str, variable: str) -> None:
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    for name in ("onnxruntime", "onnxruntime_genai"):  # instead of the real ones, which would act on the variable
        (libraries / f"{name}.py").write_text("raise ImportError('not today')", encoding="utf-8")
    home = Home(tmp_path, libraries)
    with pytest.raises(AssertionError, match="not today"):
        home.run("-m", "genai_server", "serve", "--port", "0", "--telemetry", wanted)
    engine = next(note["pid"] for note in home.notes("started") if ENGINE in note["started"])
    seen = {(note["pid"] == engine, note["variable"]) for note in home.notes("imported")}
    assert seen == {(True, variable), (False, "1")}  # the server itself only checks that it is installed
