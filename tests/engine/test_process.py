"""What an engine process loads; what it does with it is tested with the supervisor and the server."""

from pathlib import Path

import pytest

from genai_server.engine import process
from genai_server.engine.decoder_graph import DecoderGraph, DoesNotFit, read_decoder_graph
from genai_server.engine.model_files import check_model_directory
from genai_server.messages import EngineSpec
from tests.running_server import DEMO


def spec(max_length: int) -> EngineSpec:
    return EngineSpec("cpu", str(DEMO), "", "", 0, 4, 4, 64, max_length, "auto", 0, "", "", 0, 0, 0, "", "info")


def test_a_model_whose_rope_changes_for_a_whole_batch_is_batched_up_to_there_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def switching(model_dir: Path) -> DecoderGraph:
        graph = read_decoder_graph(model_dir)
        return DecoderGraph(**vars(graph) | {"switches_at": 128})

    monkeypatch.setattr(process, "read_decoder_graph", switching)
    model = check_model_directory(DEMO)
    assert process.load_batched(spec(128), DEMO, model).max_rows == 4
    with pytest.raises(DoesNotFit, match="more than 128 tokens, and GENAI_MAX_LENGTH allows 129"):
        process.load_batched(spec(129), DEMO, model)
