"""Fixtures: the demo model in the library and in a session of ONNX Runtime."""

from typing import Any

import pytest

from genai_server.engine.model.graph import read_decoder_graph
from genai_server.engine.model.session import open_session
from genai_server.engine.runners.og_generator import OgGeneratorRunner
from tests.running_server import DEMO


@pytest.fixture(scope="module")
def generator() -> OgGeneratorRunner:
    return OgGeneratorRunner(DEMO, "cpu", threads=1)


@pytest.fixture(scope="module")
def session() -> Any:
    return open_session(read_decoder_graph(DEMO), 1, optimized=False)
