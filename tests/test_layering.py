"""Imports run strictly downward, and each library is imported in the rooms that are named for it only.

If this test stopped you: a room (a module or folder right below src/genai_server) may import rooms that stand below its
own, the root package itself, and, in the lowest layer only, its neighbours. What two rooms of a layer both
need belongs further down; what has to know everything belongs into cli/. A new room gets a place in LAYERS, a border
moves by a change of the tables here and a line in docs/architecture.md that says why. Imports inside functions and
under `if TYPE_CHECKING` count like all others. Rooms that have rooms of their own keep to FORBIDDEN among these.
"""

import ast
import fnmatch
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = "genai_server"
SOURCES = Path(__file__).parents[1] / "src" / PACKAGE

# From the bottom up.
LAYERS: tuple[tuple[str, ...], ...] = (
    (
        "child_process",
        "errors",
        "gc_policy",
        "generation",
        "malloc",
        "answer_parts",
        "timing",
        "options",
        "messages",
        "heartbeat",
        "profile_plan",
        "installation",
        "quoted_values",
        "pooling_model",
    ),
    ("config", "logs"),
    ("text", "openai_api", "profiles", "hub", "grammar_checker", "web"),
    ("engine", "engine_client", "supervisor", "anthropic_api", "ollama_api"),
    ("api", "bench", "chat"),
    ("cli",),
    ("asgi", "__main__"),
)
# Modules that a module must not know, although the layers would let it: a name stands for all modules below it, too.
FORBIDDEN: dict[str, tuple[str, ...]] = {
    # A request enters by a route, is generated, and is told of; nobody looks back.
    "api": ("engine", "supervisor", "hub"),
    "api.generation": ("api.app", "api.routes", "api.admin", "api.middleware"),
    "api.middleware": ("api.app", "api.routes", "api.admin", "api.generation", "api.telemetry"),
    "api.routes": ("api.app", "api.admin", "api.telemetry"),
    "api.admin": ("api.app", "api.generation", "api.telemetry"),
    "api.telemetry": ("api.app", "api.routes", "api.admin", "api.middleware"),
    # An engine's process puts these together; each does its part without the others.
    "engine": ("text", "openai_api", "hub"),
    "engine.host": ("engine.ipc", "engine.measuring", "engine.model", "engine.profiling", "engine.runners")
    + ("engine.sampling", "engine.scheduling", "engine.sequence"),
    "engine.ipc": ("engine.loop", "engine.process", "engine.measuring", "engine.model", "engine.profiling")
    + ("engine.runners",),
    "engine.model": ("engine.loop", "engine.process", "engine.ipc", "engine.measuring", "engine.profiling")
    + ("engine.sampling", "engine.scheduling", "engine.sequence"),
    "engine.profiling": ("engine.loop", "engine.process", "engine.ipc", "engine.measuring", "engine.model")
    + ("engine.sampling",),
    "engine.runners": ("engine.loop", "engine.process", "engine.ipc", "engine.measuring"),
    "engine.sampling": ("engine.loop", "engine.process", "engine.ipc", "engine.measuring", "engine.profiling")
    + ("engine.scheduling",),
    "engine.scheduling": ("engine.loop", "engine.process", "engine.host", "engine.ipc", "engine.measuring")
    + ("engine.model", "engine.profiling", "engine.runners", "engine.sampling"),
    # What everybody starts with.
    "cli.serve": ("cli.deploy", "cli.doctor", "cli.tune"),
    "text.prompts": ("text.answers", "text.codec", "text.grammars"),
    "text.tool_formats": ("text.codec", "text.prompts"),
    "engine_client": ("text", "openai_api", "profiles", "hub", "grammar_checker"),
    "supervisor": ("text", "openai_api", "profiles", "hub", "grammar_checker"),
    "anthropic_api": ("text", "profiles", "hub", "grammar_checker"),
    "ollama_api": ("text", "profiles", "hub", "grammar_checker"),
    # They talk to a server as any client does.
    "bench": ("text", "openai_api", "profiles", "hub", "messages", "generation", "grammar_checker")
    + ("engine", "engine_client", "supervisor", "anthropic_api", "ollama_api"),
    "chat": ("text", "openai_api", "profiles", "hub", "messages", "generation", "grammar_checker")
    + ("engine", "engine_client", "supervisor", "anthropic_api", "ollama_api"),
}
# Libraries, by pattern of their top module, and the modules that may import them.
LIBRARIES: dict[str, tuple[str, ...]] = {
    # hub.export_encoder is a program for another environment, with PyTorch.
    "onnxruntime*": ("engine.*", "hub.export_encoder"),
    "torch": ("hub.export_encoder",),
    "transformers": ("hub.export_encoder",),
    # It reads what strangers send, and must not do so in the API process.
    "llguidance": ("engine.sampling.grammar", "grammar_checker.compiler", "text.grammars.gbnf"),
    "tokenizers": ("text.tokenizer",),
    "google": ("options.pbtxt",),
    "jinja2": ("text.prompts.chat_template", "text.prompts.template_meter", "text.prompts.template_sandbox"),
    "fastapi": ("api.*", "cli.*"),
    "starlette": ("api.*", "cli.*"),
    "sse_starlette": ("api.*", "cli.*"),
    "uvicorn": ("cli.*",),
    "prometheus_client": ("api.*", "cli.deploy.merging", "cli.top.snapshot"),
    # For people at a terminal.
    "rich": ("cli.*",),
    "prompt_toolkit": ("cli.dialogue.questions", "cli.top.command"),
    # With an extra only: whoever serves does not have them.
    "aiohttp": ("bench.*",),
    "opentelemetry": ("api.telemetry.traces",),
    "matplotlib": ("bench.plot",),
    "huggingface_hub": ("hub.client",),
    "ray": ("cli.deploy.*",),
    "zmq": ("engine.runners.kv_events",),
    "cbor2": ("engine.runners.kv_events",),
}
# What may be named in these modules only.
NAMES: dict[str, tuple[str, ...]] = {
    "os.environ": ("config.*",),
    "os.getenv": ("config.*",),
    "os.putenv": ("config.*",),
    "print": ("cli.*", "hub.export_encoder"),
}


def imports(tree: ast.AST) -> Iterator[str]:
    """Everything that is imported, in dotted form with the imported name: `os.path.join` for its `from … import`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            prefix = "." * node.level + (node.module or "")
            yield from (f"{prefix}.{alias.name}" for alias in node.names)


def violations(module: str, source: str) -> list[str]:
    """What a module, named without the package as in `engine.loop`, does against the tables."""
    tree = ast.parse(source)
    found = []
    for name in imports(tree):
        if name.startswith("."):
            found.append(f"{module} imports {name} relatively, which this test does not read")
        elif name.partition(".")[0] == PACKAGE:
            found += _against_layers(module, name.removeprefix(PACKAGE).removeprefix("."))
        else:
            found += _against_borders(module, name.partition(".")[0], LIBRARIES)
            found += _against_borders(module, name, NAMES)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Call):
            used = node if isinstance(node, ast.Attribute) else node.func
            found += _against_borders(module, ast.unparse(used), NAMES)
    return found


def _against_layers(module: str, imported: str) -> list[str]:
    room, other = module.partition(".")[0], imported.partition(".")[0]
    for place, unknown in FORBIDDEN.items():
        if _covers(f"{place}.*", module) and any(_covers(f"{name}.*", imported) for name in unknown):
            return [f"{module} must not know {imported}"]
    if other in (room, "__version__", ""):
        return []
    if _layer(room) is None or _layer(other) is None:
        return [f"{module} imports {imported}, and one of both has no place in LAYERS"]
    here, there = _layer(room), _layer(other)
    assert here is not None
    assert there is not None
    if there > here or (there == here and here > 0):
        return [f"{module} must not know {imported}"]
    return []


def _against_borders(module: str, name: str, table: dict[str, tuple[str, ...]]) -> list[str]:
    return [
        f"{module} uses {name}, which belongs to {', '.join(allowed)} only"
        for pattern, allowed in table.items()
        if fnmatch.fnmatchcase(name, pattern) and not any(_covers(room, module) for room in allowed)
    ]


def _covers(room: str, module: str) -> bool:
    """Whether `engine.*` stands for the module (it does for `engine` itself, too)."""
    return module == room or fnmatch.fnmatchcase(f"{module}.", room)


def _layer(room: str) -> int | None:
    return next((number for number, rooms in enumerate(LAYERS) if room in rooms), None)


def modules() -> dict[str, str]:
    """The source of each module of the package, by its name without the package; the root itself is ""."""
    names = {}
    for path in SOURCES.rglob("*.py"):
        parts = path.relative_to(SOURCES).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text(encoding="utf-8")
    return names


def cycle(sources: dict[str, str]) -> list[str] | None:
    """Modules that import each other in a circle, or None."""
    graph: dict[str, set[str]] = {}
    for module, source in sources.items():
        ours = [name.removeprefix(PACKAGE + ".") for name in imports(ast.parse(source)) if name.startswith(PACKAGE)]
        graph[module] = {name if name in sources else name.rpartition(".")[0] for name in ours} - {module, ""}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return None


def test_each_module_keeps_to_its_layer_and_borders() -> None:
    sources = modules()
    del sources[""]
    assert [found for module, source in sorted(sources.items()) for found in violations(module, source)] == []


def test_every_room_has_a_place_and_every_place_a_room() -> None:
    assert {name.partition(".")[0] for name in modules() if name} == {room for layer in LAYERS for room in layer}


def test_the_root_package_imports_nothing_of_its_own() -> None:
    assert not [name for name in imports(ast.parse(modules()[""])) if name.startswith(PACKAGE)]


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert cycle(modules()) is None


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("errors", "from genai_server.config import Settings"),
        ("errors", "def f():\n    import genai_server.api.app"),
        ("text.codec", "from genai_server.openai_api import schemas"),
        ("engine.loop", "from genai_server.supervisor.supervisor import Supervisor"),
        ("engine.loop", "from genai_server import text"),
        ("engine_client.client", "if TYPE_CHECKING:\n    from genai_server.openai_api.schemas import Wire"),
        ("api.app", "from genai_server.engine.host.cores import usable_cores"),
        ("api.admin.models", "from genai_server.supervisor.command_listener import CommandListener"),
        ("api.generation.generate", "from genai_server.api.routes.chat import router"),
        ("api.generation.generate", "from genai_server.api import routes"),
        ("api.middleware.auth", "from genai_server.api.routes.models import model_entry"),
        ("engine.scheduling.scheduler", "from genai_server.engine.runners.runner_pair import RunnerPair"),
        ("engine.runners.runner_pair", "def f():\n    from genai_server.engine import loop"),
        ("bench.bare_loop", "from genai_server.engine.measuring.bare_loop import BareLoop"),
        ("api.app", "from genai_server.bench import plan"),
        ("bench.sweep", "from genai_server.api import app"),
        ("engine_client.client", "import aiohttp"),
        ("bench.report", "import rich.console"),
        ("cli.serve.command", "import genai_server.asgi"),
        ("api.app", "from ..engine import loop"),
        ("api.app", "from genai_server.nowhere import x"),
        ("text.tokenizer", "import onnxruntime_genai"),
        ("text.codec", "from tokenizers import Tokenizer"),
        ("api.routes.tokens", "import jinja2"),
        ("engine_client.client", "from onnxruntime_genai.models import builder"),
        ("engine.process", "import fastapi"),
        ("openai_api.schemas", "from starlette.types import Receive"),
        ("asgi", "from sse_starlette import EventSourceResponse"),
        ("api.app", "import uvicorn.config"),
        ("engine.host.cores", "import os\nx = os.environ['A']"),
        ("configuration", "import os\nos.environ.clear()"),
        ("cli.serve.command", "from os import environ"),
        ("cli.serve.command", "import os\nos.getenv('A')"),
        ("cli.serve.composition", "from ray import serve"),
        ("engine.loop", "print(1)"),
    ],
)
def test_this_test_sees_a_module_that_does_wrong(module: str, source: str) -> None:
    assert len(set(violations(module, source))) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("messages", "from genai_server.generation import Sampling"),
        ("engine.loop", "from genai_server.engine.sampling.sampler import Sampler"),
        ("engine.process", "from genai_server.engine.runners.choose import load_runners"),
        ("api.routes.chat", "from genai_server.api.generation.generate import generate"),
        ("engine.runners.og_generator", "def f():\n    import onnxruntime_genai"),
        ("text.tokenizer", "from genai_server.config import Settings\nimport tokenizers"),
        ("cli", "import uvicorn\nfrom genai_server.engine.host.cores import usable_cores\nprint(1)"),
        ("config.environment", "import os\nos.environ['A'] = '1'"),
        ("api.routes.health", "import genai_server\nfrom genai_server import __version__\nimport os.path"),
    ],
)
def test_this_test_lets_a_module_do_what_it_may(module: str, source: str) -> None:
    assert violations(module, source) == []


def test_this_test_sees_a_circle() -> None:
    sources = {"a": "from genai_server.b import x", "b": "def f():\n    from genai_server import a"}
    assert set(cycle(sources) or ()) == {"a", "b"}
