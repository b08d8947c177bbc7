"""A model with a long context under the default settings: how many requests run at once, and what errors say."""

import shutil
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from genai_server.engine.model.graph_reader import read_decoder_graph
from tests.model_edits import edited_config
from tests.running_server import DEMO, RunningServer, last_event, wait_until
from tests.server_here import module_server, run_here

CONTEXT = 32_768
BYTES_PER_TOKEN = read_decoder_graph(DEMO).bytes_per_token
# What coding agents send before the first message of a person, in tokens, which are bytes on a scripted device.
AGENT_PROMPT = 20_000


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model with another context. Its sequences must stay below its own, where its rope ends."""
    directory = tmp_path_factory.mktemp("long") / "model"
    shutil.copytree(DEMO, directory)
    with edited_config(directory) as config:
        config["model"]["context_length"] = CONTEXT
    return directory


def device(server: RunningServer) -> dict[str, Any]:
    found: dict[str, Any] = server.health()["devices"]["cpu"]
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="slots share memory on Linux")
def test_eight_requests_without_a_limit_run_together(model: Path, tmp_path: Path) -> None:
    """The memory holds one of them at full length."""
    memory = str(int(1.1 * CONTEXT * BYTES_PER_TOKEN))
    with run_here(tmp_path, "--model-dir", str(model), "--kv-cache-bytes", memory) as server, ExitStack() as streams:
        assert (device(server)["max_length"], device(server)["limited_by"]) == (CONTEXT, "the model's context")
        readers = [streams.enter_context(server.begun(f"Story {n}", ignore_eos=True)) for n in range(8)]
        wait_until(lambda: device(server)["running"] == 8)
        assert device(server)["waiting"] == 0
        assert server.options(terminate_session="1").status_code == 200
        assert {last_event(reader)["finish_reason"] for reader in readers} == {"terminated"}


@pytest.mark.skipif(sys.platform != "linux", reason="slots share memory on Linux")
def test_errors_and_lists_say_what_the_memory_allows(model: Path, tmp_path: Path) -> None:
    memory = 5000 * BYTES_PER_TOKEN
    with run_here(tmp_path, "--model-dir", str(model), "--kv-cache-bytes", str(memory)) as server:
        (entry,) = server.client.get("/v1/models").json()["data"]
        words = f"memory: {memory} bytes for keys and values, GENAI_KV_CACHE_BYTES"
        assert (entry["max_model_len"], entry["context_length"], entry["limited_by"]) == (4096, 4096, words)
        assert (device(server)["max_length"], device(server)["limited_by"]) == (4096, words)
        (listed,) = server.client.get("/api/v1/models").json()["models"]
        assert listed["max_context_length"] == 4096
        shown = server.client.post("/api/show", json={"model": entry["id"]}).json()
        assert shown["model_info"]["llama.context_length"] == 4096
        refused = server.chat("hello " * 9000)
        assert refused.status_code == 400
        message = refused.json()["error"]["message"]
        assert message.startswith("This model's maximum context length is 4096 tokens. However, your messages resulted")
        assert message.endswith(f"Please reduce the length ({words}).")


scripted = module_server("--device", "scripted", "--max-length", str(CONTEXT))


@pytest.mark.parametrize(
    ("path", "fields", "answer"),
    [
        # As Claude Code, Codex and Open WebUI send them.
        ("/v1/messages", {"max_tokens": 32_000, "system": "{system}"}, '"text":"hello"'),
        ("/v1/responses", {"instructions": "{system}", "store": False}, '"text":"hello"'),
        ("/v1/chat/completions", {}, '"content":"hello"'),
    ],
)
def test_prompts_of_agents_fit_without_further_settings(
    scripted: RunningServer, path: str, fields: dict[str, Any], answer: str
) -> None:
    system = "x" * AGENT_PROMPT
    fields = {name: system if value == "{system}" else value for name, value in fields.items()}
    said = {"role": "user", "content": "\nsay hello"}
    if path == "/v1/responses":
        fields["input"] = [said]
    else:
        fields["messages"] = [said] if "system" in fields else [{"role": "system", "content": system}, said]
    response = scripted.client.post(path, json={"model": "demo", **fields})
    assert response.status_code == 200, response.text
    assert answer in response.text.replace(": ", ":")
