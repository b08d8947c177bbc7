"""Two adapters of a real model at once, together with requests without one, in a server over sockets."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.running_server import RunningServer, last_event, run_server

pytestmark = pytest.mark.slow
FRANCE = "What is the capital of France?"
STEPS = 24


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, adapted: Path) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("adapted_server")
    options = ("--model-dir", str(adapted), "--model-name", "demo")
    with run_server(folder, *options, "--adapters", f"lively={adapted / 'lively.onnx_adapter'}") as server:
        path = str(adapted / "dreamy.onnx_adapter")
        response = server.client.post("/v1/admin/adapters/load", json={"name": "dreamy", "path": path})
        assert response.json()["state"] == "ready"
        yield server


@pytest.fixture(scope="module")
def one_by_one(tmp_path_factory: pytest.TempPathFactory, adapted: Path) -> Iterator[RunningServer]:
    """A server whose requests run on Generators."""
    adapters = ",".join(f"{name}={adapted / name}.onnx_adapter" for name in ("lively", "dreamy"))
    options = ("--model-dir", str(adapted), "--model-name", "demo", "--adapters", adapters)
    with run_server(tmp_path_factory.mktemp("one_by_one"), *options, "--scheduler", "generator") as server:
        yield server


def streamed(server: RunningServer, model: str, found: list[str], **fields: Any) -> None:
    with server.stream(FRANCE, model=model, **fields) as events:
        received = [json.loads(event) for event in events]
        assert received[-1]["metrics"]["model"] == model
        found.append("".join(event["token"] for event in received[:-1]))


@pytest.mark.parametrize("fields", [{}, {"exact": True}], ids=["plain", "exact"])
def test_streams_with_different_adapters_answer_as_alone(server: RunningServer, fields: dict[str, Any]) -> None:
    found: dict[str, list[str]] = {"demo:lively": [], "demo:dreamy": [], "demo": []}
    alone: dict[str, list[str]] = {model: [] for model in found}
    for model, texts in alone.items():
        streamed(server, model, texts, max_tokens=STEPS, **fields)
    threads = [
        threading.Thread(target=streamed, args=(server, model, texts), kwargs={"max_tokens": STEPS, **fields})
        for model, texts in found.items()
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert found == {model: texts * 3 for model, texts in alone.items()}
    assert len({texts[0] for texts in alone.values()}) >= 2
    assert server.device("cpu")["batching"]["scheduler"] == "batched"


def test_adapter_inputs_cause_no_library_warning(server: RunningServer) -> None:
    assert "will not be treated as constant" not in server.log()


def test_a_file_of_another_model_ends_no_stream(server: RunningServer, adapted: Path, own_folder: Path) -> None:
    content = (adapted / "lively.onnx_adapter").read_bytes()
    other = own_folder / "other.onnx_adapter"
    other.write_bytes(content.replace(b"lm_head.lora_A", b"lm_tail.lora_A"))
    with server.begun("Count from 1 to 50.", model="demo:lively", max_tokens=60) as reader:
        response = server.client.post("/v1/admin/adapters/load", json={"name": "other", "path": str(other)})
        assert response.status_code == 400
        assert response.json()["error"] == {
            "message": f'adapter "other": {other} does not fit this model, whose graph has no input '
            "lm_tail.lora_A.weight",
            "type": "invalid_request_error",
            "param": "path",
            "code": "adapter_load_failed",
        }
        assert last_event(reader)["finish_reason"] in ("stop", "length")
