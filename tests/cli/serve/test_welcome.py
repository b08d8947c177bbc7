"""The block of text that ends the start in a terminal."""

import json
import os
import sys
from pathlib import Path

import pytest

from genai_server.cli.serve.welcome import url_of, welcome
from genai_server.config.settings import Settings
from genai_server.config.sources import load_settings
from genai_server.messages.server_status import EngineCores, EngineState, EngineStatus
from tests.running_server import DEMO, ROOT, clean_environment, start_command


def settings(**given: str) -> Settings:
    return load_settings(given, environ={}, dotenv=None)


def shown(capsys: pytest.CaptureFixture[str], **given: str) -> str:
    welcome(settings(**given), 8002)
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
        ("::1", "http://[::1]:80"),
        ("example.org", "http://example.org:80"),
    ],
)
def test_the_address_is_one_that_a_program_here_can_use(host: str, url: str) -> None:
    assert url_of(host, 80, is_https=False) == url
    assert url_of(host, 80, is_https=True) == url.replace("http", "https")


def test_welcome_has_address_model_command_and_base_urls(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, model_dir=str(DEMO), model_name="demo", max_length="100")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line.startswith("  ")]
    assert ["address", "http://127.0.0.1:8002"] in lines
    assert ["model", "demo on cpu, context 100 tokens"] in lines
    first = next(rest for title, rest in lines if title == "first")
    assert first.endswith("genai-server chat http://127.0.0.1:8002")
    assert "OpenAI clients    base URL http://127.0.0.1:8002/v1" in text
    assert "Anthropic clients base URL http://127.0.0.1:8002\n" in text
    assert "Ollama clients    base URL http://127.0.0.1:8002\n" in text
    assert "web page          http://127.0.0.1:8002/\n" in text
    assert "http://127.0.0.1:8002/docs" in text


def test_the_commands_fit_the_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert "web page" not in shown(capsys, model_dir=str(DEMO), ui="false")
    text = shown(capsys, model_dir=str(DEMO), api_keys="a-key-of-sixteen-characters")
    assert ("chat http://127.0.0.1:8002 --api-key KEY" in text, "a-key-of" in text) == (True, False)
    text = shown(capsys, models=f"vectors={ROOT / 'models' / 'demo-embeddings'},talk={DEMO}")
    assert "genai-server chat http://127.0.0.1:8002\n" in text


def test_a_model_without_a_template_is_to_continue_a_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file in DEMO.iterdir():
        if file.name not in ("chat_template.jinja", "tokenizer_config.json"):
            (tmp_path / file.name).symlink_to(file)
    (tmp_path / "tokenizer_config.json").write_text("{}", encoding="utf-8")
    assert "curl http://127.0.0.1:8002/v1/completions " in shown(capsys, model_dir=str(tmp_path))


@pytest.mark.parametrize(
    ("directory", "model", "request_of"),
    [
        (
            "models/demo-embeddings",
            "vectors of 128 numbers (pooling mean, normalized), texts of at most 256 tokens",
            """/v1/embeddings -H 'content-type: application/json' -d '{"model": "mine", "input": """,
        ),
        (
            "models/demo-reranker",
            "scores from 0 to 1, pairs of at most 256 tokens",
            """/v1/rerank -H 'content-type: application/json' -d '{"model": "mine", "query": """,
        ),
        (
            "tests/built_models/whisper",
            "transcripts of recordings",
            "curl http://127.0.0.1:8002/v1/audio/transcriptions -F model=mine -F file=@recording.mp3",
        ),
    ],
    ids=["embeddings", "reranker", "speech"],
)
def test_a_model_for_other_tasks_is_shown_with_its_request(
    capsys: pytest.CaptureFixture[str], directory: str, model: str, request_of: str
) -> None:
    text = shown(capsys, model_dir=str(ROOT / directory), model_name="mine")
    assert (f"mine on cpu, {model}" in text, request_of in text) == (True, True), text


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such terminals there")
def test_a_terminal_sees_it_when_the_server_is_ready() -> None:
    import pty

    ours, theirs = pty.openpty()
    arguments = ["serve", "--device", "scripted", "--port", "0"]
    with open(os.devnull, "r+b") as nothing:
        files = [nothing.fileno(), theirs, nothing.fileno()]
        process = start_command(*arguments, environment=clean_environment(TERM="xterm"), files=files)
    os.close(theirs)
    try:
        seen = b""
        while b"Anthropic clients" not in seen:
            seen += os.read(ours, 4096)
        assert b"is ready" in seen
    finally:
        process.terminate()
        process.wait(90)
        os.close(ours)


def loaded(max_length: int, limited_by: str = "memory: 9 bytes for keys and values") -> EngineStatus:
    return EngineStatus("cpu", EngineState.READY, model="demo", max_length=max_length, limited_by=limited_by)


def test_the_cores_of_several_engines_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    cores = [EngineCores("0-7", 8, 0), EngineCores("8-15", 8, 1)]
    engines = [
        EngineStatus(f"cpu:{one.node}", EngineState.READY, model="demo", max_length=9, cores=one) for one in cores
    ]
    welcome(settings(model_dir=str(DEMO), model_name="demo", device="cpu:0,cpu:1"), 8002, engines)
    text = capsys.readouterr().out
    assert "cpu:0 has 8 threads on CPUs 0-7 of NUMA node 0\n" in text
    assert "cpu:1 has 8 threads on CPUs 8-15 of NUMA node 1\n" in text


def test_a_context_limited_by_memory_is_shown_with_figures(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = {"model": {"type": "llama", "context_length": 131_072, "vocab_size": 9, "eos_token_id": 2}}
    (tmp_path / "genai_config.json").write_text(json.dumps(config), encoding="utf-8")

    def lines(engine: EngineStatus, **given: str) -> list[str]:
        welcome(settings(model_dir=str(tmp_path), model_name="demo", **given), 8002, [engine])
        text = capsys.readouterr().out
        return [line.strip() for line in text.splitlines() if "context" in line or "coding agents" in line]

    shown = "demo on cpu, context {} tokens of the model's 131072 (memory: 9 bytes for keys and values)"
    line, advice = lines(loaded(20_480))
    assert line == f"model             {shown.format(20480)}"
    assert advice.startswith("coding agents such as Claude Code need about 32768 tokens: free some memory, set GENAI")
    assert lines(loaded(40_960)) == [f"model             {shown.format(40960)}"]
    assert lines(loaded(131_072, "the model's context")) == ["model             demo on cpu, context 131072 tokens"]
    (line,) = lines(loaded(4096, "GENAI_MAX_LENGTH"), max_length="4096")
    assert line.endswith("context 4096 tokens of the model's 131072 (GENAI_MAX_LENGTH)")
