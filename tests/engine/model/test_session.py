"""The session of a batch."""

import onnxruntime
import pytest

from genai_server.engine.graph_description import DoesNotFit
from genai_server.engine.model.graph_reader import read_decoder_graph
from genai_server.engine.model.session import open_session
from tests.running_server import DEMO, run_python


def test_batch_needs_a_recent_onnx_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "__version__", "1.31.2")
    with pytest.raises(DoesNotFit, match=r"needs onnxruntime 1\.32, and 1\.31\.2 is installed"):
        open_session(read_decoder_graph(DEMO), 1)


def test_operators_with_states_share_the_pool_of_all_sessions() -> None:
    program = (
        "from pathlib import Path\n"
        "from genai_server.engine.model.graph_reader import read_decoder_graph\n"
        "from genai_server.engine.model.session import open_session, open_state_operators\n"
        "from genai_server.engine.model.session_options import use_global_pool\n"
        "from genai_server.options.device import check_device\n"
        "options = check_device({'session': {'global_thread_pool': 1}}, 'cpu')\n"
        "use_global_pool(options, 1)\n"
        "graph = read_decoder_graph(Path('tests/built_models/qwen-3.5'))\n"
        "complete = open_session(graph, 1, options=options)\n"
        "print(open_state_operators(graph, complete).get_session_options().use_per_session_threads)\n"
    )
    assert run_python("-c", program) == "False\n"
