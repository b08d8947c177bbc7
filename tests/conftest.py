"""Fixtures: a clean environment for each test, and servers that a whole test session shares."""

from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.running_server import DEMO, SETTINGS, RunningServer, run_server

# Property tests try the same examples each time, for as long as they take.
hypothesis.settings.register_profile("genai-server", deadline=None, derandomize=True)
hypothesis.settings.load_profile("genai-server")


@pytest.fixture(autouse=True)
def clean_environ(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of whoever runs the tests reaches a test."""
    import os

    for name in list(os.environ):
        if name.startswith(SETTINGS):
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server over two scripted devices, for tests that leave it as they found it."""
    folder = tmp_path_factory.mktemp("scripted")
    with run_server(folder, "--device", "scripted:0,scripted:1", "--max-length", "2000") as server:
        yield server


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server over the demo model, for tests that leave it as they found it."""
    with run_server(tmp_path_factory.mktemp("demo"), "--model-dir", str(DEMO)) as server:
        yield server


@pytest.fixture
def own_folder(tmp_path: Path) -> Path:
    """A folder for a server of this test's own."""
    return tmp_path
