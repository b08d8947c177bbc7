"""Imports run strictly downward, and each library is imported only in the packages named for it.

If this test fails: a package (a module or folder directly below src/genai_server) may import packages of lower layers,
the root package and, in the lowest layer only, its neighbours. What two packages of a layer both need belongs further
down; what depends on everything belongs in cli/. A new package gets a place in LAYERS; a border is moved by a change of
the tables here and a line in docs/architecture.md with the reason. Imports inside functions and those under
`if TYPE_CHECKING` count, too. Packages with subpackages follow FORBIDDEN among these.
"""

import ast
import fnmatch
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = "genai_server"
SOURCES = Path(__file__).parents[1] / "src" / PACKAGE

# From the bottom up. A subpackage may have its own place.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("batch_files", "errors", "fair_queue", "answer_parts", "timing", "options", "messages", "model_files")
    + ("plain_tables", "system"),
    ("config", "logs", "store"),
    ("workers",),
    ("text", "profiles", "hub", "grammar_checker", "web"),
    ("media", "tool_servers"),
    ("engine", "engine_client", "supervisor", "http"),
    ("generation",),
    ("apis",),
    ("cli",),
    ("tools", "ray_serve"),
    ("asgi", "__main__"),
)
# The APIs that an API may import, besides apis.shared. Code shared by all of them belongs there.
KNOWN_APIS: dict[str, tuple[str, ...]] = {
    "admin": ("models",),
    "chat_completions": ("tokens",),
    "batches": ("files",),
    "completions": ("chat_completions", "tokens"),
    "decisions": ("responses",),
    "embeddings": ("scoring",),
    "files": (),
    "health": ("models",),
    "messages": (),
    "metrics": (),
    "models": ("messages",),
    "ollama": ("embeddings", "models"),
    "own_chat": ("chat_completions",),
    "responses": ("chat_completions",),
    "scoring": (),
    "tool_servers": (),
    "tokens": (),
    "transcriptions": (),
    "web_page": (),
}


def _of_engine(names: str) -> tuple[str, ...]:
    """Modules and packages of the engine."""
    return tuple(f"engine.{name}" for name in names.split())


# Modules that a module must not import although the layers allow it; a name includes all modules below it.
FORBIDDEN: dict[str, tuple[str, ...]] = {
    **{
        f"apis.{api}": ("apis.app", "apis.openapi", *(f"apis.{other}" for other in KNOWN_APIS.keys() - {api, *known}))
        for api, known in KNOWN_APIS.items()
    },
    # What APIs share knows none of them.
    "apis.shared": ("apis.app", "apis.openapi", *(f"apis.{api}" for api in KNOWN_APIS)),
    # The HTTP side imports neither models nor runners.
    "apis": ("engine", "supervisor", "hub"),
    "generation": ("engine", "supervisor", "profiles", "hub", "web"),
    "http": ("text", "profiles", "hub", "grammar_checker.compiler", "web"),
    "http.middleware": ("http.telemetry.traces",),
    "http.telemetry": ("http.middleware",),
    # An engine's process combines these; each works without the others.
    "engine": ("text", "apis", "hub", "media"),
    "engine.graph_rewriting": _of_engine(
        "loop process host supervisor_link api_connections bare_loop kv_cache model profiling runners sampling "
        "scheduling"
    ),
    **dict.fromkeys(
        ("engine.host", "engine.supervisor_link"),
        _of_engine(
            "graph_rewriting api_connections kv_cache bare_loop model profiling runners sampling scheduling sequence"
        ),
    ),
    "engine.api_connections": _of_engine("loop process bare_loop model profiling graph_rewriting kv_cache runners"),
    "engine.kv_cache": _of_engine("loop process api_connections bare_loop model profiling runners sampling"),
    "engine.model": _of_engine("loop process api_connections bare_loop profiling runners sampling scheduling sequence"),
    "engine.profiling": _of_engine("loop process api_connections bare_loop model graph_rewriting sampling"),
    "engine.runners": _of_engine("loop process api_connections bare_loop"),
    "engine.sampling": _of_engine("loop process api_connections bare_loop profiling scheduling"),
    "engine.scheduling": _of_engine(
        "loop process host supervisor_link api_connections bare_loop graph_rewriting kv_cache model profiling runners "
        "sampling"
    ),
    "text.prompts": ("text.answers", "text.codec", "text.grammars"),
    "text.tool_formats": ("text.codec", "text.prompts"),
    "engine_client": ("text", "apis", "profiles", "hub", "grammar_checker"),
    "supervisor": ("text", "apis", "profiles", "hub", "grammar_checker"),
    # They use a server like any client.
    "tools.bench": ("text", "apis", "http", "generation", "profiles", "hub", "messages", "grammar_checker")
    + ("engine.kv_cache", "engine.loop", "engine.bare_loop", "engine.runners", "engine_client", "supervisor"),
    "tools.terminal_chat": ("text", "apis", "generation", "profiles", "messages", "grammar_checker")
    + ("engine_client", "supervisor"),
}
_HTTP = ("apis.*", "cli.*", "generation.*", "http.*", "ray_serve.*")
# Programs for another environment, with PyTorch.
_PROGRAMS = ("hub.build_graph", "hub.build_mobius", "hub.export_encoder", "hub.measure_export", "hub.unpack_gguf")
# Libraries, by pattern of their top-level module, and the modules that may import them.
LIBRARIES: dict[str, tuple[str, ...]] = {
    "onnxruntime*": ("engine.*", "hub.build_mobius", "hub.export_encoder", "hub.measure_export")
    + ("media.images.processor", "media.images.audio_processor", "media.audio.features", "media.audio.voice_activity"),
    # It parses untrusted input, and must not do so in the API process.
    "PIL": ("media.images.processor", "media.images.process"),
    "av": ("media.audio.decoding",),
    "torch": _PROGRAMS,
    "transformers": _PROGRAMS,
    "mobius": ("hub.build_mobius",),
    "gguf": ("hub.build_graph", "hub.unpack_gguf"),
    # It parses untrusted input, and must not do so in the API process.
    "llguidance": ("engine.sampling.grammar", "grammar_checker.compiler", "text.grammars.grammar"),
    "tokenizers": ("text.tokenizer",),
    "google": ("engine.model.files", "tools.import_triton"),
    "jinja2": ("text.prompts.chat_template", "text.prompts.template_sandbox"),
    "fastapi": _HTTP,
    "starlette": _HTTP,
    "uvicorn": ("cli.serve.*", "ray_serve.*"),
    "python_multipart": ("http.upload",),
    "prometheus_client": ("apis.*", "generation.dependencies", "http.telemetry.*", "ray_serve.merging")
    + ("tools.top_tables",),
    # For people at a terminal.
    "rich": ("cli.*", "tools.*"),
    "prompt_toolkit": ("tools.terminal_chat.user_input", "tools.top_command"),
    # Only with an extra: servers do not have them.
    "aiohttp": ("tools.bench.*",),
    "opentelemetry": ("http.telemetry.traces",),
    "matplotlib": ("tools.bench.plot",),
    "huggingface_hub": ("hub.client",),
    "ray": ("ray_serve.*",),
    "mcp": ("tool_servers.connection", "tools.mcp_command"),
    "mcp_types": ("tool_servers.connection", "tools.mcp_command"),
    "httpx2": ("hub.client", "tool_servers.connection"),
    "zmq": ("engine.kv_cache.kv_events",),
    "cbor2": ("engine.kv_cache.kv_events",),
}
# Modules that only these modules may import.
NAMES: dict[str, tuple[str, ...]] = {
    "os.environ": ("config.*",),
    "os.getenv": ("config.*",),
    "os.putenv": ("config.*",),
    "print": ("cli.*", "tools.*", "ray_serve.*", *_PROGRAMS),
}


@cache
def parsed(source: str) -> ast.AST:
    """The tree of a module, which several tests read."""
    return ast.parse(source)


def imports(tree: ast.AST) -> Iterator[str]:
    """All imports in dotted form with the imported name: `os.path.join` for its `from … import`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            prefix = "." * node.level + (node.module or "")
            yield from (f"{prefix}.{alias.name}" for alias in node.names)


def violations(module: str, source: str) -> list[str]:
    """Violations of the tables by a module, named without the package as in `engine.loop`."""
    tree = parsed(source)
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
            found += _against_borders(module, _dotted(used), NAMES)
    return found


def _dotted(used: ast.expr) -> str:
    """A name or an attribute of a name, as in `os.environ`; an empty text for anything else."""
    if isinstance(used, ast.Attribute) and isinstance(used.value, ast.Name):
        return f"{used.value.id}.{used.attr}"
    return used.id if isinstance(used, ast.Name) else ""


def _against_layers(module: str, imported: str) -> list[str]:
    package, other = _package_of(module), _package_of(imported)
    for place, unknown in FORBIDDEN.items():
        if _covers(f"{place}.*", module) and any(_covers(f"{name}.*", imported) for name in unknown):
            return [f"{module} must not know {imported}"]
    if other in (package, "__version__", ""):
        return []
    if _layer(package) is None or _layer(other) is None:
        return [f"{module} imports {imported}, and one of both has no place in LAYERS"]
    here, there = _layer(package), _layer(other)
    assert here is not None
    assert there is not None
    if there > here or (there == here and here > 0):
        return [f"{module} must not know {imported}"]
    return []


def _against_borders(module: str, name: str, table: dict[str, tuple[str, ...]]) -> list[str]:
    return [
        f"{module} uses {name}, which belongs to {', '.join(allowed)} only"
        for pattern, allowed in table.items()
        if fnmatch.fnmatchcase(name, pattern) and not any(_covers(package, module) for package in allowed)
    ]


def _covers(package: str, module: str) -> bool:
    """Whether `engine.*` includes the module (it includes `engine` itself, too)."""
    return module == package or fnmatch.fnmatchcase(f"{module}.", package)


def _package_of(module: str) -> str:
    """The package of a module that has a place in LAYERS."""
    parts = module.split(".")
    starts = (".".join(parts[:length]) for length in (3, 2))
    return next((start for start in starts if _layer(start) is not None), parts[0])


def _layer(package: str) -> int | None:
    return next((number for number, packages in enumerate(LAYERS) if package in packages), None)


def modules() -> dict[str, str]:
    """The source of each module of the package, by its name without the package; the root's name is ""."""
    names = {}
    for path in SOURCES.rglob("*.py"):
        parts = path.relative_to(SOURCES).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text(encoding="utf-8")
    return names


def cycle(sources: dict[str, str]) -> list[str] | None:
    """Modules that import each other in a cycle, or None."""
    graph: dict[str, set[str]] = {}
    for module, source in sources.items():
        ours = [name.removeprefix(PACKAGE + ".") for name in imports(parsed(source)) if name.startswith(PACKAGE)]
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


def test_every_package_has_a_place_in_the_layers() -> None:
    assert {_package_of(name) for name in modules() if name} == {package for layer in LAYERS for package in layer}


def test_every_api_lists_the_apis_it_may_import() -> None:
    apis = {name.split(".")[1] for name in modules() if name.startswith("apis.")}
    assert apis - {"app", "openapi", "shared"} == set(KNOWN_APIS)


def test_each_module_named_in_the_tables_exists() -> None:
    """Otherwise a module that is renamed would leave its rules behind."""
    existing = {module.rsplit(".", parts)[0] for module in modules() for parts in range(4)}
    named = {*FORBIDDEN}.union(*FORBIDDEN.values(), *LIBRARIES.values(), *NAMES.values())
    assert {name.removesuffix(".*") for name in named} <= existing


def test_the_root_package_imports_nothing_of_its_own() -> None:
    assert not [name for name in imports(ast.parse(modules()[""])) if name.startswith(PACKAGE)]


def test_modules_have_no_import_cycles() -> None:
    assert cycle(modules()) is None


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("errors", "from genai_server.config.settings import Settings"),
        ("errors", "def f():\n    import genai_server.apis.app"),
        ("engine.loop", "from genai_server import text"),
        ("engine_client.client", "if TYPE_CHECKING:\n    from genai_server.generation.parameters.base import Wire"),
        ("apis.shared.router", "from genai_server.apis.tokens import schemas"),
        ("apis.messages.routes", "from genai_server.apis.ollama.schemas import ChatRequest"),
        ("engine.graph_rewriting.ragged", "from genai_server.engine.model.graph_reader import read_decoder_graph"),
        ("apis.app", "from ..engine import loop"),
        ("apis.app", "from genai_server.nowhere import x"),
        ("engine_client.client", "from onnxruntime_genai.models import builder"),
        ("engine.process", "import fastapi"),
        ("logs", "import os\nos.environ.clear()"),
        ("cli.serve.serve_command", "from os import environ"),
        ("engine.loop", "print(1)"),
    ],
)
def test_violation_by_a_module_is_detected(module: str, source: str) -> None:
    assert len(set(violations(module, source))) == 1


def test_import_cycle_is_detected() -> None:
    sources = {"a": "from genai_server.b import x", "b": "def f():\n    from genai_server import a"}
    assert set(cycle(sources) or ()) == {"a", "b"}
