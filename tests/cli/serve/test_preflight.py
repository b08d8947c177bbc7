"""What the checks before a start log."""

from pathlib import Path

import pytest

from genai_server.cli.serve.preflight import check_access, check_files, check_models
from genai_server.errors import ConfigurationError
from tests.given_settings import given
from tests.model_edits import base_model
from tests.running_server import DEMO, ROOT

_MODELS = {
    "speech": ROOT / "tests" / "built_models" / "whisper",
    "vectors": ROOT / "models" / "demo-embeddings",
}


@pytest.mark.parametrize("name", ["base", *_MODELS])
def test_only_models_that_generate_lack_a_chat_template(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = _MODELS.get(name) or base_model(tmp_path / name)
    check_models(given(models=f"{name}={directory}"))
    assert (f"model {name} has no chat template" in caplog.text) is (name == "base")


@pytest.mark.parametrize("name", _MODELS)
def test_draft_model_without_effect_needs_no_common_tokens(name: str) -> None:
    check_models(given(models=f"{name}={_MODELS[name]}", draft_model=f"{name}={DEMO}"))


def test_the_folder_for_files_must_be_writable(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    check_files(given(files_dir=str(folder)))
    assert folder.is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="GENAI_FILES_DIR=.*file: cannot be written: file exists"):
        check_files(given(files_dir=str(tmp_path / "file")))


def test_a_file_without_keys_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "keys").touch()
    check_access(given(api_key_file=str(tmp_path / "keys")))
    assert f"{tmp_path / 'keys'} has no API key" in caplog.text
