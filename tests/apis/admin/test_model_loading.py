"""Failing model loads: each gets a response, whatever exception the loader raises."""

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from genai_server.text.codec import TextCodec, load_text_codec
from tests.running_server import DEMO, ROOT, RunningServer, wait_until
from tests.server_here import run_here


class Panic(BaseException):
    """An exception like the panics of Rust libraries, which derive from BaseException."""


class Mute(Exception):
    """An exception whose text cannot be read."""

    def __str__(self) -> str:
        raise RecursionError


ERRORS = [StopIteration("x"), StopAsyncIteration(), SystemExit(2), KeyboardInterrupt(), GeneratorExit(), Panic("p\nq")]
ERRORS += [MemoryError(), RecursionError("deep"), OSError(5, "input"), Mute(), TimeoutError()]


class Loader:
    """Reads models as the server does; the nth call raises an error."""

    def __init__(self) -> None:
        self.errors: dict[str, BaseException] = {}
        self.raises_at = 1
        self._calls = 0
        self._lock = threading.Lock()

    def __call__(self, model_dir: Path, device: str, **more: Any) -> TextCodec:
        error = self.errors.get(model_dir.name)
        with self._lock:
            self._calls += error is not None
            if error is not None and self._calls >= self.raises_at:
                self._calls = 0
                raise error
        return load_text_codec(model_dir, device, **more)


@pytest.fixture(scope="module")
def loader() -> Iterator[Loader]:
    with pytest.MonkeyPatch.context() as patch:
        loader = Loader()
        patch.setattr("genai_server.cli.serve.loaders.load_text_codec", loader)
        yield loader


@pytest.fixture(scope="module")
def server(loader: Loader, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with run_here(tmp_path_factory.mktemp("server"), "--device", "scripted") as server:
        yield server


def load(server: RunningServer, path: str, **more: Any) -> tuple[int, str]:
    """The response to a load call: status and message."""
    body = {"name": "bad", "path": path, **more}
    response = server.client.post("/v1/admin/models/load", json=body, timeout=60)
    return response.status_code, response.json().get("error", {}).get("message", "")


@pytest.mark.parametrize("raises_at", [1, 2], ids=["check", "serving"])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_any_exception_of_a_loader_is_the_answer_to_a_load(
    server: RunningServer, loader: Loader, error: BaseException, raises_at: int
) -> None:
    loader.errors["raising"], loader.raises_at = error, raises_at
    status, message = load(server, "/raising")
    assert (status, type(error).__name__ in message, "\n" in message) == (400, True, False), message
    assert server.chat("say x").json()["content"] == "x"
    assert [model["id"] for model in server.client.get("/v1/models").json()["data"]] == ["demo"]
    wait_until(lambda: set(server.health()["models"]) == {"demo"})


def test_a_model_can_be_loaded_after_its_loader_failed(server: RunningServer, loader: Loader) -> None:
    loader.errors["raising"], loader.raises_at = StopIteration(), 2
    assert load(server, "/raising")[0] == 400
    wait_until(lambda: set(server.health()["models"]) == {"demo"})
    loader.errors.clear()
    assert load(server, "/raising")[0] == 200
    assert server.chat("say x", model="bad").json()["content"] == "x"
    unloaded = server.client.post("/v1/admin/models/unload", json={"name": "bad", "timeout": 0})
    assert unloaded.status_code == 200


@pytest.mark.parametrize("path", ["/a\0b", "/" + "x" * 5000, "/\u202e"])
@pytest.mark.parametrize("device", ["cpu", "scripted"])
def test_any_path_is_answered_with_one_line(server: RunningServer, path: str, device: str) -> None:
    status, message = load(server, path, device=device)
    assert status in (200, 400), message
    assert "\n" not in message
    if status == 200:
        assert server.client.post("/v1/admin/models/unload", json={"name": "bad", "timeout": 0}).status_code == 200
    assert server.chat("say x").json()["content"] == "x"


def test_a_tokenizer_that_encodes_nothing_is_refused(server: RunningServer, tmp_path: Path) -> None:
    model = shutil.copytree(DEMO, tmp_path / "model")
    tokenizers.Tokenizer(tokenizers.models.BPE({"b": 0}, [])).save(str(model / "tokenizer.json"))
    status, message = load(server, str(model), device="cpu")
    expected = f'the tokenizer {model / "tokenizer.json"} cannot be used: it encodes "a" to zero tokens'
    assert (status, message) == (400, expected)


@pytest.mark.parametrize(("model", "task"), [("demo-embeddings", "embedding"), ("demo-speech", "transcription")])
def test_draft_model_of_a_model_without_drafts_is_refused(server: RunningServer, model: str, task: str) -> None:
    status, message = load(server, str(ROOT / "models" / model), draft_model=str(DEMO))
    expected = f"draft_model={DEMO}: the task of the model is {task}, and only completion has drafts"
    assert (status, message) == (400, expected)
    assert set(server.health()["models"]) == {"demo"}
