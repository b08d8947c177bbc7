"""The ways to start the server, and the error line of a failed start."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
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


def start(*arguments: str, **settings: str) -> "subprocess.CompletedProcess[str]":
    """Run a command that is expected to end."""
    command, environment = [sys.executable, "-m", *arguments], clean_environment(**settings)
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=90, check=False)


def serve(*options: str, **settings: str) -> "subprocess.CompletedProcess[str]":
    """`genai-server serve`, where it is expected to end."""
    return run_command("serve", *options, environment=clean_environment(**settings))


def is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz").status_code == 200
    except httpx.TransportError:
        return False


VISION = ROOT / "models" / "demo-vision"


@pytest.mark.parametrize(
    ("options", "settings", "line"),
    [
        ([], {"PORT": "many"}, 'PORT="many": '),
        ([], {"PORT": "70000"}, 'PORT="70000": '),
        ([], {"WORKERS": "0"}, 'WORKERS="0": '),
        ([], {"RELOAD": "perhaps"}, 'RELOAD="perhaps": '),
        ([], {"GENAI_DEVICE": "tpu"}, 'GENAI_DEVICE="tpu": unknown device "tpu"; known are cpu, cuda, tensorrt'),
        ([], {"GENAI_DEVICE": "cpu,cpu"}, 'GENAI_DEVICE="cpu,cpu": a device is named twice'),
        ([], {"GENAI_MAX_LENGTH": "-1"}, 'GENAI_MAX_LENGTH="-1": '),
        (["--max-length", "none"], {}, '--max-length="none": '),
        ([], {"GENAI_MODEL_DIR": "/none"}, "GENAI_MODEL_DIR=/none: model directory /none does not exist; genai-"),
        (["--model-dir", str(DEMO), "--chat-template", "chatmll"], {}, "--chat-template: chatmll: no such file"),
        (
            ["--model-dir", str(DEMO), "--draft-model", str(VISION)],
            {},
            f"--draft-model={VISION}: it must have the tokenizer of {DEMO}: special token ",
        ),
    ],
)
def test_invalid_setting_ends_the_start_with_one_line_and_code_2(
    refused_start: Callable[..., str], options: list[str], settings: dict[str, str], line: str
) -> None:
    assert refused_start(*options, **settings).startswith(f"genai-server: {line}")


@pytest.mark.parametrize(
    ("file", "content"),
    [
        *((file, None) for file in ("genai_config.json", "model.onnx", "model.onnx.data", "tokenizer_config.json")),
        *[("tokenizer.json", None), ("tokenizer.json", "{}"), ("chat_template.jinja", "{% for %}")],
        ("genai_config.json", "[]"),
    ],
)
def test_model_file_that_is_missing_or_unusable_ends_the_start_with_one_line(
    refused_start: Callable[..., str], tmp_path: Path, file: str, content: str | None
) -> None:
    model = tmp_path / "model"
    shutil.copytree(DEMO, model)
    (model / file).unlink()
    if content is not None:
        (model / file).write_text(content, encoding="utf-8")
    for options in ((), ("--workers", "2")):
        line = refused_start("--model-dir", str(model), *options)
        assert f"--model-dir={model}: " in line
        assert content is not None or file in line


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
@pytest.mark.parametrize(
    ("module", "options", "says", "extra"),
    [
        ("zmq", ["--device", "scripted", "--kv-events", "tcp://*:5557"], "--kv-events=tcp://*:5557: zmq", "kv-events"),
        ("onnxruntime_genai", ["--model-dir", str(DEMO)], "-m pip install", "[cpu]"),
    ],
)
def test_missing_library_is_reported_with_the_extra_to_install(
    tmp_path: Path, module: str, options: list[str], says: str, extra: str
) -> None:
    result = serve(*options, **environment_without(module, tmp_path))
    assert result.returncode == 2
    assert (says in result.stderr, extra in result.stderr) == (True, True), result.stderr
    assert result.stderr.count("\n") == 2  # below the first line of the log


@pytest.mark.slow
def test_tool_servers_need_their_package_and_a_right_table(refused_start: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "server.toml").write_text('[mcp.time]\ncommand = ["mcp-server-time"]\n', encoding="utf-8")
    options = ["--device", "scripted", "--config", str(tmp_path / "server.toml")]
    result = serve(*options, **environment_without("mcp", tmp_path))
    assert result.returncode == 2
    assert "[mcp.NAME] in the configuration file: mcp missing; install what it needs: " in result.stderr
    allowing = ["--device", "scripted", "--mcp-hosts", "mcp.example.com"]
    result = serve(*allowing, **environment_without("mcp", tmp_path))
    assert "--mcp-hosts: mcp missing; install what it needs: " in result.stderr
    (tmp_path / "server.toml").write_text('[mcp.time]\ncomand = ["mcp-server-time"]\n', encoding="utf-8")
    assert "[mcp.time] comand: unknown" in refused_start(*options)


def test_a_port_in_use_hides_no_mistyped_model(refused_start: Callable[..., str], scripted: RunningServer) -> None:
    port = scripted.url.rpartition(":")[2]
    line = refused_start("--device", "scripted", "--port", port)
    assert f"--port={port}: in use on 127.0.0.1, perhaps by another genai-server; --port 0" in line
    assert 'no model "modle" here or in ' in refused_start("modle", "--port", port)


def test_the_process_id_is_in_a_file_while_the_server_runs(refused_start: Callable[..., str], tmp_path: Path) -> None:
    file = tmp_path / "server.pid"
    with run_server(tmp_path, settings={"GENAI_DEVICE": "scripted", "GENAI_PID_FILE": str(file)}) as server:
        assert file.read_text() == f"{server.process.pid}\n"
    assert not file.exists()
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
@pytest.mark.parametrize("program", [("uvicorn", "genai_server.asgi:app"), ("genai_server", "serve")])
def test_a_wrong_setting_is_one_line_of_a_separate_process_too(program: tuple[str, ...]) -> None:
    result = start(*program, GENAI_DEVICE="tpu")
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
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
