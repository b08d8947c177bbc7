"""`genai-server run`: a local model, or one from a hub over HTTP, and a chat with it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.local_hub import HubRepository, LocalHub, run_hub
from tests.running_server import DEMO, clean_environment, run_command

FILES = {path.name: path.read_bytes() for path in DEMO.iterdir() if path.is_file()}
QUESTION = "What is the capital of France?\n"


@pytest.fixture
def hub() -> Iterator[LocalHub]:
    with run_hub() as found:
        found.repositories["org/tiny"] = HubRepository({f"cpu/{name}": content for name, content in FILES.items()})
        yield found


def run(hub: LocalHub, models: Path, *arguments: str) -> tuple[int, str]:
    """Ask one question; returns the status and all output, errors last."""
    kept = {name: value for name, value in clean_environment().items() if not name.startswith("HF_")}
    environment = kept | {"GENAI_MODELS_DIR": str(models), "HF_ENDPOINT": hub.url, "HF_HOME": "/nonexistent"}
    ended = run_command("run", *arguments, environment=environment, said=QUESTION)
    return ended.returncode, ended.stdout + ended.stderr


def test_one_question_to_a_fetched_model_prints_the_answer(hub: LocalHub, tmp_path: Path) -> None:
    environment = {**clean_environment(), "GENAI_MODELS_DIR": str(tmp_path), "HF_ENDPOINT": hub.url}
    done = run_command("run", "org/tiny", QUESTION, environment=environment)
    assert (done.returncode, done.stdout) == (0, "The capital of France is Paris.\n"), done.stderr
    assert f"is in {tmp_path / 'tiny'}, checked" in done.stderr


def test_unknown_model_is_named_with_the_alternatives(hub: LocalHub, tmp_path: Path) -> None:
    status, out = run(hub, tmp_path, "nowhere")
    assert (status, f'no model "nowhere" here or in {tmp_path}' in out) == (2, True)
    assert "genai-server models lists those that are there; OWNER/NAME fetches one" in out
    status, out = run(hub, tmp_path, "org/none")
    assert (status, "there is no org/none" in out) == (1, True)
