"""Models that share the memory of a machine, whose size the tests set, on real engine processes."""

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from genai_server.config.settings import Settings
from genai_server.messages.server_status import EngineState
from genai_server.model_files.model_memory import RUNTIME, ModelMemory, read_model_memory
from genai_server.supervisor.kv_cache_size import MemoryBudget
from genai_server.supervisor.supervisor import Supervisor
from tests.given_settings import given
from tests.running_server import DEMO, RunningServer, last_event, refusal, wait_until
from tests.server_here import run_here
from tests.test_several_models import SLOW, load, states, unload

MIB = 2**20
_HAVING_MEMORY = (EngineState.READY, EngineState.UNLOADING)


def read(directory: Path) -> ModelMemory:
    """Of a model whose path is its size in MiB; the demo model has its own."""
    if directory == DEMO:
        return read_model_memory(directory)
    return ModelMemory(int(directory.name) * MIB, MIB // 100, 8192)


def with_memory(total: int) -> Callable[[Settings], Supervisor]:
    """A supervisor on a machine with this number of MiB for the models, of which engines that are ready take theirs."""

    def supervise(settings: Settings) -> Supervisor:
        def free() -> int:
            ready = [status.model for status in supervisor.statuses() if status.state in _HAVING_MEMORY]
            paths = {model.about.name: Path(model.about.path) for model in supervisor._models}
            return total * MIB - sum(RUNTIME + read(paths[name]).weights for name in ready)

        supervisor = Supervisor(settings, budget=MemoryBudget(settings, free=free, read=read))
        return supervisor

    return supervise


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Two models with memory for one of them, and one that is too large."""
    settings = {"GENAI_MODELS": "one=/1000,two=/1001,large=/9000"}
    folder = tmp_path_factory.mktemp("models")
    with run_here(folder, "--device", "scripted", settings=settings, supervise=with_memory(2000)) as running:
        assert states(running) == {"one": "ready", "two": "unloaded", "large": "unloaded"}
        yield running


def test_an_idle_model_is_unloaded_for_one_that_has_no_memory(server: RunningServer) -> None:
    for name, other in (("two", "one"), ("one", "two")):
        answer = server.chat("say x", model=name)
        assert answer.status_code == 200, answer.text
        assert states(server) == {name: "ready", other: "unloaded", "large": "unloaded"}


def test_a_model_in_use_is_not_unloaded_and_the_figures_say_why(server: RunningServer) -> None:
    assert server.chat("say x", model="one").status_code == 200
    with server.begun(SLOW, model="one") as reader:
        refused = server.chat("say x", model="two", timeout=1)
        assert refusal(refused)[:2] == (503, "models_busy")
        message = refused.json()["error"]["message"]
        assert message.startswith("model two has not been loaded for 1 s (model two needs about 1201 MiB for its")
        assert " MiB are free next to one, which keep 0 MiB of it (GENAI_MAX_MODELS=0 " in message
        assert states(server)["one"] == "ready"
        answers: list[httpx.Response] = []
        waiting = threading.Thread(target=lambda: answers.append(server.chat("say x", model="two")))
        waiting.start()
        wait_until(lambda: "shortage" in server.health()["models"]["two"])
        assert server.options(terminate_session="1", model="one").status_code == 200
        last = last_event(reader)
    assert last["finish_reason"] == "terminated"
    waiting.join(90)
    assert answers[0].json()["content"] == "x"
    assert states(server) == {"one": "unloaded", "two": "ready", "large": "unloaded"}


def test_a_model_that_can_never_fit_is_refused_with_the_figures(server: RunningServer) -> None:
    before = states(server)
    refused = server.chat("say x", model="large")
    assert refusal(refused)[:2] == (503, "insufficient_memory")
    assert "model large needs about 9200 MiB for its weights, and 20 MiB for keys" in refused.json()["error"]["message"]
    refused = load(server, name="more", path="/8000")
    assert refusal(refused) == (400, "model_load_failed", "path")
    assert "model more needs about 8200 MiB" in refused.json()["error"]["message"]
    wait_until(lambda: states(server) == before)


def test_keys_and_values_of_loaded_models_share_the_memory(tmp_path: Path) -> None:
    settings = {"GENAI_MODELS": f"one={DEMO}", "GENAI_MAX_MODELS": "0"}

    def tokens(name: str) -> int:
        device = running.health()["models"].get(name, {"devices": {"cpu": {}}})["devices"]["cpu"]
        found: int = device.get("batching", {}).get("kv_tokens", 0)
        return found

    with run_here(tmp_path, settings=settings, supervise=with_memory(700)) as running:
        wait_until(lambda: tokens("one") > 30_000)  # 16 sequences of full length
        assert load(running, name="two", path=str(DEMO)).json()["state"] == "ready"
        wait_until(lambda: tokens("two") > 8000 and abs(tokens("one") - tokens("two")) < 100)
        os.kill(running.health()["models"]["one"]["devices"]["cpu"]["pid"], signal.SIGKILL)
        wait_until(lambda: running.health()["models"]["one"]["devices"]["cpu"]["restarts"] == 1)
        wait_until(lambda: 8000 < tokens("one") < 16_000)
        for name in ("one", "two"):
            assert running.chat("hello", model=name, max_tokens=5).status_code == 200
        assert unload(running, name="two").status_code == 200
        wait_until(lambda: tokens("one") > 30_000)
        assert running.chat("hello", max_tokens=5).status_code == 200


def test_a_server_whose_model_cannot_fit_does_not_start(caplog: pytest.LogCaptureFixture) -> None:
    settings = given(model_dir="/9000", device="scripted")
    supervisor = Supervisor(settings, budget=MemoryBudget(settings, free=lambda: 2000 * MIB, read=read))
    with caplog.at_level(logging.WARNING):
        supervisor.start()
    try:
        assert supervisor.status().no_model_loaded
        (line,) = [record.getMessage() for record in caplog.records]
        assert line == (
            "model 9000 needs about 9200 MiB for its weights, and 20 MiB for keys and values of a short "
            "sequence; 2000 MiB are free (GENAI_MAX_MODELS=0 loads it in any case)"
        )
    finally:
        supervisor.stop()
