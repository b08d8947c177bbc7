"""Fixtures of the tests of Ray Serve."""

from typing import Any

import pytest


@pytest.fixture(scope="session")
def ray_serve() -> Any:
    """Ray Serve, whose import takes seconds and prints warnings."""
    return pytest.importorskip("ray.serve", reason="Ray Serve is not installed (extra ray)")
