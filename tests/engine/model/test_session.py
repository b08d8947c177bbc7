"""The session of a batch."""

import onnxruntime
import pytest

from genai_server.engine.model.graph import DoesNotFit, read_decoder_graph
from genai_server.engine.model.session import open_session
from tests.running_server import DEMO


def test_batch_needs_a_recent_onnx_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "__version__", "1.31.2")
    with pytest.raises(DoesNotFit, match=r"needs onnxruntime 1\.32, and 1\.31\.2 is installed"):
        open_session(read_decoder_graph(DEMO), 1, optimized=False)
