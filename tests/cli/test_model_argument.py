"""MODEL of `serve`: a directory, a name, or a repository of a hub over HTTP."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from genai_server.cli.model_argument import fetched, find
from genai_server.cli.pull_command import pull, source_of
from genai_server.errors import ConfigurationError, PullFailed
from genai_server.hub.client import Hub
from tests.given_settings import given
from tests.local_hub import HubRepository, LocalHub, run_hub
from tests.running_server import DEMO, clean_environment, run_command, start_command

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no such terminals there")
FILES = {path.name: path.read_bytes() for path in DEMO.iterdir() if path.is_file()}


@pytest.fixture(scope="module")
def hub() -> Iterator[LocalHub]:
    with run_hub() as found:
        found.repositories["org/tiny"] = HubRepository({f"cpu/{name}": content for name, content in FILES.items()})
        two = {f"{folder}/{name}": content for folder in ("cpu", "cuda") for name, content in FILES.items()}
        found.repositories["org/two"] = HubRepository(two)
        variants = ("cpu_and_mobile/cpu-int4-rtn-block-32-acc-level-4", "gpu/gpu-int4-rtn-block-32")
        microsofts = {f"{folder}/{name}": content for folder in variants for name, content in FILES.items()}
        found.repositories["microsoft/Phi-4-mini-instruct-onnx"] = HubRepository(microsofts)
        yield found


def environment(hub: LocalHub, models: Path) -> dict[str, str]:
    kept = {name: value for name, value in clean_environment().items() if not name.startswith("HF_")}
    return kept | {"GENAI_MODELS_DIR": str(models), "HF_ENDPOINT": hub.url, "HF_HOME": "/nonexistent", "TERM": "xterm"}


def served(hub: LocalHub, models: Path, model: str, device: str = "scripted") -> str:
    """What a terminal of 200 columns shows until a server with this model is ready."""
    import fcntl
    import pty
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 200, 0, 0))
    arguments = ["serve", model, "--port", "0", "--device", device]
    with open(os.devnull, "rb") as nothing:
        files = [nothing.fileno(), theirs, theirs]
        process = start_command(*arguments, environment=environment(hub, models), files=files)
    os.close(theirs)
    seen = ""
    try:
        while "all endpoints" not in seen:
            seen += os.read(ours, 4096).decode(errors="replace")
    finally:
        process.terminate()
        process.wait(90)
        os.close(ours)
    return seen


def failure(hub: LocalHub, models: Path, *arguments: str) -> str:
    done = run_command("serve", "--port", "0", *arguments, environment=environment(hub, models))
    assert done.returncode in (1, 2)
    return done.stderr.splitlines()[-1] if "choose one" not in done.stderr else done.stderr


@pytest.mark.parametrize(
    ("name", "advice"), [("model.onnx", "is a file; a model is a folder"), ("m.gguf", "is a file; genai-server export")]
)
def test_a_file_is_refused_with_what_to_do(tmp_path: Path, name: str, advice: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(ConfigurationError, match=advice):
        fetched(str(tmp_path / name), given(models_dir=str(tmp_path)))


def test_repository_is_fetched_and_served_by_its_name(hub: LocalHub, tmp_path: Path) -> None:
    seen = served(hub, tmp_path, "org/tiny")
    assert "tiny on scripted" in seen
    assert "6/6 " in seen
    assert "MiB" in seen
    assert "HTTP Request" not in seen


@pytest.mark.parametrize(
    ("repository", "folder", "names"),
    [
        ("org/two:cuda", "two", ["two", "org/two", "org/two:cuda"]),
        ("microsoft/Phi-4-mini-instruct-onnx", "mine", ["mine", "phi4-mini"]),
    ],
)
def test_fetched_model_is_found_by_its_names_without_the_hub(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repository: str, folder: str, names: list[str]
) -> None:
    settings, path = given(models_dir=str(tmp_path)), tmp_path / folder
    pull(Hub(None, hub.url), source_of(repository, settings), path, watch=lambda file, size: None)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    assert {fetched(name, settings) for name in (*names, str(path))} == {path}
    with pytest.raises(PullFailed, match="connection refused|Connection refused"):
        fetched("org/two:cpu", settings)
    assert fetched(str(DEMO), settings) == DEMO


def test_a_known_short_name_gets_no_advice_without_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(PullFailed, match="^no model(?!.*did you mean)"):
        fetched("phi4-mini", given(models_dir=str(tmp_path)))


def test_a_short_name_is_a_repository_with_the_variant_for_the_device(hub: LocalHub, tmp_path: Path) -> None:
    seen = served(hub, tmp_path, "phi4-mini", "cpu")
    variant = "cpu_and_mobile/cpu-int4-rtn-block-32-acc-level-4"
    assert f"microsoft/Phi-4-mini-instruct-onnx:{variant} is for cpu: 0.01" in seen
    assert "phi4-mini on cpu" in seen
    unknown = failure(hub, tmp_path, "phi4-mni")
    assert 'no model "phi4-mni" here or in' in unknown
    assert "did you mean phi4-mini?" in unknown


def test_wrong_model_is_named_as_it_was_typed(hub: LocalHub, tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    assert f'no model "nowhere" here or in {tmp_path}' in failure(hub, tmp_path, "nowhere")
    for text in ("~nobody/x", "x" * 300, ""):
        with pytest.raises(ConfigurationError, match=f'^no model "{text[:20]}'):
            find(text, tmp_path)
    assert "already holds other files; genai-server pull org/tiny --to DIR" in failure(hub, tmp_path, "org/tiny")
    assert '"org/none" here or in' in failure(hub, tmp_path, "org/none")
    refused = failure(hub, tmp_path, "org/two", "--device", "tensorrt")
    assert "org/two has no model for tensorrt; choose one:" in refused
    assert "  org/two:cuda  (" in refused
    assert "genai-server serve org/tiny fetches it" in failure(hub, tmp_path, "--model-dir", "org/tiny")
    assert f"genai-server serve tiny serves the one in {tmp_path}" in failure(hub, tmp_path, "--model-dir", "tiny")
    assert "both MODEL=tiny and --model-dir x" in failure(hub, tmp_path, "tiny", "--model-dir", "x")
    assert "both MODEL=tiny and --models=a=x" in failure(hub, tmp_path, "tiny", "--models", "a=x")
