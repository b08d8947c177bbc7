"""What the tests of the deployment on Ray Serve share."""

from typing import Any

import pytest


@pytest.fixture(scope="session")
def ray_serve() -> Any:
    """Ray Serve, which takes seconds to import and warns meanwhile."""
    return pytest.importorskip("ray.serve", reason="Ray Serve is not installed (extra ray)")
