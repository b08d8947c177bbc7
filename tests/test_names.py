"""No test hides another one of its module."""

import ast
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parent


def names(path: Path) -> list[str]:
    """The tests of a module in order, including duplicates."""
    found = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    functions = [node.name for node in found if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [name for name in functions if name.startswith("test_")]


def test_names_of_tests_are_unique_in_their_module() -> None:
    modules = {path: Counter(names(path)) for path in TESTS.rglob("test_*.py")}
    assert len(modules) > 200
    assert [f"{path.name}: {name}" for path, counts in modules.items() for name in counts if counts[name] > 1] == []
