"""Builds of the library for tests, beside the one that is installed."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.running_server import ROOT


def compilation() -> Any:
    """The module native/compile_library.py."""
    spec = importlib.util.spec_from_file_location("compile_library", ROOT / "native" / "compile_library.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build(config: pytest.Config, name: str, extra: Sequence[str]) -> Path:
    """The library with `extra` options of the compiler, from an earlier run with these sources if there was one.

    Skips the test where the machine has no compiler.
    """
    module = compilation()
    if not module.find_compiler():
        pytest.skip("there is no C++ compiler")
    assert config.cache is not None
    folder = config.cache.mkdir("native")
    made = folder / f"{name}-{module.digest()}.so"
    if not made.exists():
        for older in folder.glob(f"{name}-*.so"):
            older.unlink(missing_ok=True)
        module.compile_library(made, extra=extra)
    return made
