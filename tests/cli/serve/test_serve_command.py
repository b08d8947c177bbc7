"""The ways to start the server, and the error line of a failed start."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import httpx
import psutil
import pytest

from genai_server import __version__
from genai_server.cli.serve.server_lifetime import listen
from genai_server.config.sources import load_settings
from tests.running_server import (
    DEMO,
    ROOT,
    RunningServer,
    body,
    clean_environment,
    command_line,
    environment_without,
    free_port,
    has_ended,
    run_command,
    run_server,
    wait_until,
)
from tests.running_server import serve_with_uvicorn as uvicorn


def start(
    *arguments: str, cwd: Path = ROOT, settings: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a command that is expected to end."""
    command = [sys.executable, "-m", *arguments]
    environment = clean_environment(**(settings or {}))
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=90, check=False)


def serve(
    *options: str, cwd: Path = ROOT, settings: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """`genai-server serve`, where it is expected to end."""
    return run_command("serve", *options, environment=clean_environment(**(settings or {})), cwd=cwd)


def is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz").status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"PORT": "many"}, 'PORT="many": '),
        ({"PORT": "70000"}, 'PORT="70000": '),
        ({"WORKERS": "0"}, 'WORKERS="0": '),
        ({"RELOAD": "perhaps"}, 'RELOAD="perhaps": '),
        ({"GENAI_DEVICE": "tpu"}, 'GENAI_DEVICE="tpu": unknown device "tpu"; known are cpu, cuda, tensorrt'),
        ({"GENAI_DEVICE": "cpu,cpu"}, 'GENAI_DEVICE="cpu,cpu": a device is named twice'),
        ({"GENAI_MAX_LENGTH": "-1"}, 'GENAI_MAX_LENGTH="-1": '),
        (
            {"GENAI_MODEL_DIR": "/none"},
            "GENAI_MODEL_DIR=/none: model directory /none does not exist; genai-server serve ",
        ),
    ],
)
def test_invalid_setting_ends_the_start_with_one_line_and_code_2(
    refused_start: Callable[..., str], settings: dict[str, str], line: str
) -> None:
    assert refused_start(**settings).startswith(f"genai-server: {line}")


def test_invalid_setting_ends_a_separate_process_with_code_2() -> None:
    result = serve(settings={"PORT": "many"})
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith('genai-server: PORT="many": ')
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "missing", ["genai_config.json", "model.onnx", "model.onnx.data", "tokenizer.json", "tokenizer_config.json"]
)
def test_incomplete_model_directory_ends_the_start_with_the_file(
    refused_start: Callable[..., str], tmp_path: Path, missing: str
) -> None:
    model = tmp_path / "model"
    shutil.copytree(DEMO, model)
    (model / missing).unlink()
    line = refused_start("--model-dir", str(model))
    assert f"--model-dir={model}: " in line
    assert missing in line


@pytest.mark.parametrize(
    ("file", "content"), [("tokenizer.json", "{}"), ("chat_template.jinja", "{% for %}"), ("genai_config.json", "[]")]
)
def test_unusable_model_file_ends_the_start_with_one_line(
    refused_start: Callable[..., str], tmp_path: Path, file: str, content: str
) -> None:
    model = tmp_path / "model"
    shutil.copytree(DEMO, model)
    (model / file).write_text(content, encoding="utf-8")
    for options in ((), ("--workers", "2")):
        assert f"--model-dir={model}: " in refused_start("--model-dir", str(model), *options)


def test_missing_chat_template_ends_the_start_with_one_line(refused_start: Callable[..., str]) -> None:
    line = refused_start("--model-dir", str(DEMO), "--chat-template", "chatmll")
    assert "--chat-template: chatmll: no such file" in line


def test_draft_model_with_other_tokens_ends_the_start(refused_start: Callable[..., str]) -> None:
    vision = ROOT / "models" / "demo-vision"
    line = refused_start("--model-dir", str(DEMO), "--draft-model", str(vision))
    assert f"--draft-model={vision}: it must have the tokenizer of {DEMO}: special token " in line


def test_the_command_line_names_its_own_option(refused_start: Callable[..., str]) -> None:
    assert refused_start("--max-length", "none").startswith('genai-server: --max-length="none": ')


def test_a_wrong_line_of_the_env_file_names_the_file(
    refused_start: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".env").write_text("PORT=x\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert refused_start().startswith('genai-server: PORT="x" in .env: ')


def test_server_without_a_loading_device_ends_with_the_reason(tmp_path: Path) -> None:
    result = serve("--device", "cuda", "--port", str(free_port()))
    assert result.returncode == 1
    assert "model demo on device cuda cannot be loaded: " in result.stderr


@pytest.mark.slow
def test_a_device_that_cannot_load_leaves_the_others_serving(own_folder: Path) -> None:
    with run_server(own_folder, "--device", "cpu,cuda", "--model-dir", str(DEMO)) as server:
        wait_until(lambda: server.device("cuda")["state"] == "failed")
        assert "uda" in server.device("cuda")["error"]
        assert server.device("cpu")["state"] == "ready"
        assert server.chat("Hello", max_tokens=2).status_code == 200
        response = server.chat("Hello", device="cuda")
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "no_engine_ready"


@pytest.mark.slow
def test_missing_kv_events_packages_are_reported_with_the_extra(tmp_path: Path) -> None:
    settings = environment_without("zmq", tmp_path) | {"GENAI_KV_EVENTS": "tcp://*:5557"}
    result = serve("--device", "scripted", settings=settings)
    assert result.returncode == 2
    assert "GENAI_KV_EVENTS=tcp://*:5557: zmq" in result.stderr
    assert "kv-events" in result.stderr
    assert result.stderr.count("\n") == 2  # below the first line of the log


@pytest.mark.slow
def test_tool_servers_without_their_package_or_with_a_wrong_table_stop_the_start(
    refused_start: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "server.toml").write_text('[mcp.time]\ncommand = ["mcp-server-time"]\n', encoding="utf-8")
    options = ["--device", "scripted", "--config", str(tmp_path / "server.toml")]
    result = serve(*options, settings=environment_without("mcp", tmp_path))
    assert result.returncode == 2
    assert "[mcp.NAME] in the configuration file: mcp missing; install what it needs: " in result.stderr
    allowing = ["--device", "scripted", "--mcp-hosts", "mcp.example.com"]
    result = serve(*allowing, settings=environment_without("mcp", tmp_path))
    assert "--mcp-hosts: mcp missing; install what it needs: " in result.stderr
    (tmp_path / "server.toml").write_text('[mcp.time]\ncomand = ["mcp-server-time"]\n', encoding="utf-8")
    assert "[mcp.time] comand: unknown" in refused_start(*options)


@pytest.mark.slow
def test_missing_library_is_reported_with_the_one_to_install(tmp_path: Path) -> None:
    result = serve("--model-dir", str(DEMO), settings=environment_without("onnxruntime_genai", tmp_path))
    assert result.returncode == 2
    assert "-m pip install" in result.stderr
    assert "[cpu]" in result.stderr
    assert result.stderr.count("\n") == 2  # below the first line of the log


def test_a_port_in_use_ends_the_start(refused_start: Callable[..., str], scripted: RunningServer) -> None:
    port = scripted.url.rpartition(":")[2]
    line = refused_start("--device", "scripted", "--port", port)
    assert f"--port={port}: in use on 127.0.0.1, perhaps by another genai-server; --port 0" in line


def test_busy_port_does_not_hide_a_mistyped_model(refused_start: Callable[..., str], scripted: RunningServer) -> None:
    line = refused_start("modle", "--port", scripted.url.rpartition(":")[2])
    assert 'no model "modle" here or in ' in line


def test_the_process_id_is_in_a_file_while_the_server_runs(tmp_path: Path) -> None:
    file = tmp_path / "server.pid"
    with run_server(tmp_path, settings={"GENAI_DEVICE": "scripted", "GENAI_PID_FILE": str(file)}) as server:
        assert file.read_text() == f"{server.process.pid}\n"
    assert not file.exists()


def test_a_file_for_the_process_id_that_cannot_be_written_ends_the_start(
    refused_start: Callable[..., str], tmp_path: Path
) -> None:
    assert refused_start(GENAI_PID_FILE=str(tmp_path)).startswith(f"genai-server: GENAI_PID_FILE={tmp_path}: cannot be")


def test_version_is_printed() -> None:
    result = start("genai_server", "--version")
    assert result.stdout == f"genai-server {__version__}\n"


@pytest.mark.slow
def test_uvicorn_alone_serves_with_an_engine_of_its_own(tmp_path: Path) -> None:
    with uvicorn(tmp_path, GENAI_DEVICE="scripted") as (process, url, _):
        wait_until(lambda: is_ready(url))
        assert httpx.post(f"{url}/v1/chat", json=body("say hi"), timeout=90).json()["content"] == "hi"
        engine = psutil.Process(httpx.get(f"{url}/healthz", timeout=90).json()["devices"]["scripted"]["pid"])
        assert psutil.Process(engine.ppid()).ppid() == process.pid
    wait_until(lambda: has_ended(engine))


@pytest.mark.slow
def test_workers_of_plain_uvicorn_share_an_engine(tmp_path: Path) -> None:
    """tests/test_process_model.py kills them."""
    options = ["--workers", "2", "--timeout-worker-healthcheck", "90"]
    with uvicorn(tmp_path, *options, GENAI_DEVICE="scripted") as (process, url, log):
        wait_until(lambda: is_ready(url), 90)
        family = psutil.Process(process.pid).children(recursive=True)
        assert len([child for child in family if "genai_server.engine.process" in command_line(child)]) == 1
        assert httpx.post(f"{url}/v1/chat", json=body("say hi"), timeout=90).json()["content"] == "hi"
        assert "Traceback" not in log.read_text(encoding="utf-8")


@pytest.mark.slow
def test_workers_of_plain_uvicorn_with_a_wrong_setting_end(tmp_path: Path) -> None:
    with uvicorn(tmp_path, "--workers", "2", GENAI_DEVICE="tpu") as (process, _, log):
        process.wait(120)
        text = log.read_text(encoding="utf-8")
    assert 'GENAI_DEVICE="tpu"' in text
    assert "Traceback" not in text


@pytest.mark.slow
def test_a_wrong_setting_under_uvicorn_is_one_line_too(tmp_path: Path) -> None:
    result = start("uvicorn", "genai_server.asgi:app", settings={"GENAI_DEVICE": "tpu"})
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert 'GENAI_DEVICE="tpu"' in result.stderr


@pytest.mark.slow
def test_reload_restarts_the_api_only_and_drains_as_configured(tmp_path: Path) -> None:
    source = ROOT / "src" / "genai_server" / "asgi.py"
    # Both settings, as in the guide of the backend that this server replaces.
    settings = {"RELOAD": "true", "WORKERS": "2", "GENAI_DRAIN_TIMEOUT": "1"}
    with run_server(tmp_path, "--device", "scripted", settings=settings) as server:
        assert "RELOAD=true WORKERS=2: reloading works with one API process only; one is started" in server.log()
        engine = server.device("scripted")["pid"]
        workers = {child.pid for child in psutil.Process(server.process.pid).children()}
        os.utime(source)
        wait_until(lambda: {child.pid for child in psutil.Process(server.process.pid).children()} - workers != set())
        wait_until(server.is_ready)
        assert server.device("scripted")["pid"] == engine
        assert server.chat("say hi").json()["content"] == "hi"
        with server.stream("delay 0.02; count 1000") as events:
            next(iter(events))
            server.process.send_signal(signal.SIGTERM)
            assert '"server_stopping"' in list(events)[-1]
        assert server.process.wait(90) == 3


def test_small_answers_are_not_delayed(tmp_path: Path) -> None:
    settings = load_settings({"port": "0"}, environ={}, dotenv=None)
    with listen(settings) as listener:
        assert listener.proto == socket.IPPROTO_TCP
