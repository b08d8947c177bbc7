"""The demo model's own draft model drafts in parallel, and was trained for that: most of its tokens are right."""

from pathlib import Path

import pytest

from genai_server.engine.model.files import check_draft_model
from genai_server.engine.model.graph_reader import read_decoder_graph
from genai_server.engine.model.session import open_session
from genai_server.engine.runners.batched import BatchedRunner
from genai_server.engine.runners.draft_model import DraftModel
from genai_server.engine.runners.loaded_model import LoadedModel
from genai_server.engine.sampling.grammar import Guidance
from genai_server.engine.scheduling.drafts import NO_DRAFT, TextDrafts
from genai_server.model_files.config_files import read_mask_token
from tests.demo_device import MAX_LENGTH, DemoDevice
from tests.engine.model_runners import batched_runner
from tests.engine.scheduling.scheduled import FreePasses
from tests.running_server import DEMO, ROOT

DEMO_DRAFT = ROOT / "models" / "demo-draft"


@pytest.mark.usefixtures("passes_of_any_length_take_the_same_time")
def test_half_of_an_answer_is_drafted_rightly(
    batched: BatchedRunner, plain: DemoDevice, guidance: Guidance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TextDrafts, "propose", lambda *_: NO_DRAFT)
    runner = batched_runner(
        DEMO_DRAFT, session=open_session(read_decoder_graph(DEMO_DRAFT), 1), num_slots=6, max_length=MAX_LENGTH
    )
    mask_token = read_mask_token(DEMO_DRAFT, check_draft_model(DEMO, DEMO_DRAFT).vocab_size)
    model = DraftModel(runner, batched.model.vocab_size, mask_token=mask_token)
    model.times = FreePasses()
    device = DemoDevice(LoadedModel(batched, batched, draft_model=model), guidance, tmp_path, speculates=True)
    for key, text in enumerate(("Count from 1 to 12.", "Count from 3 to 30.")):
        tokens = plain.answer(key, text)
        assert device.answer(key, text) == tokens
        assert device.end(key).num_accepted > len(tokens) / 2
