"""What doctor says of machines that are set up wrong."""

import importlib.metadata
import shutil
import socket
from pathlib import Path

import pytest

from genai_server.cli import findings, main
from genai_server.cli.findings import FAIL, OK, WARN, Finding
from genai_server.config import Settings, load_settings
from genai_server.engine.cores import usable_cores
from tests.running_server import DEMO, free_port


def settings(**options: str) -> Settings:
    return load_settings({"model_dir": str(DEMO)} | options, environ={}, dotenv=None)


def states(found: list[Finding]) -> list[str]:
    return [finding.state for finding in found]


def doctor(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    status = main(["doctor", "--port", "0", *arguments])
    return status, capsys.readouterr().out


def test_each_line_is_ok_where_nothing_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, printed = doctor(capsys, "--model-dir", str(DEMO), "--cache-dir", str(tmp_path))
    assert status == 0
    assert "ok    device cpu: ready after" in printed
    assert "fail" not in printed


def test_a_failure_is_the_exit_status_and_has_a_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, printed = doctor(capsys, "--model-dir", str(tmp_path / "none"), "--cache-dir", "none")
    assert status == 1
    assert "fail  model: " in printed
    assert printed.splitlines()[-1].startswith("      → ")
    assert "device cpu" not in printed  # which would only say so once more


@pytest.mark.parametrize(
    ("option", "value", "line"),
    [
        ("--max-length", "many", "fail  settings: --max-length='many'"),
        ("--options", "session.execution_mod = 1", "did you mean execution_mode?"),
    ],
)
def test_wrong_settings_are_a_finding(option: str, value: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, printed = doctor(capsys, option, value)
    assert status == 1
    assert line in printed


def test_a_device_that_cannot_load_tells_the_librarys_reason(capsys: pytest.CaptureFixture[str]) -> None:
    status, printed = doctor(capsys, "--device", "openvino,scripted", "--model-dir", str(DEMO), "--cache-dir", "none")
    assert status == 1
    assert "fail  device openvino: OpenVINO" in printed
    assert "ok    device scripted: ready" in printed


@pytest.mark.parametrize(
    ("installed", "state", "words"),
    [
        ({}, FAIL, "pip install genai-server[cpu]"),
        ({"onnxruntime-genai": "0.18.0", "onnxruntime-genai-cuda": "0.18.0"}, FAIL, "pip uninstall"),
        ({"onnxruntime-genai": "0.19.0", "onnxruntime": "1"}, WARN, "was not tested"),
        ({"onnxruntime-genai": "0.18.1", "onnxruntime": "1"}, OK, ""),
    ],
)
def test_exactly_one_library_of_the_tested_version_is_right(
    installed: dict[str, str], state: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if name not in installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    library = list(findings.versions())[1]
    assert library.state == state
    assert words in library.remedy


def test_the_cpus_provider_loads() -> None:
    (found,) = findings.providers()
    assert (found.state, found.found) == (OK, "cpu")


def test_an_onnx_runtime_that_does_not_load_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", shutil.which("false"))
    (found,) = findings.providers()
    assert found.state == FAIL


def test_threads_that_idle_or_wait_are_warned_of() -> None:
    cores = usable_cores()
    found = list(findings.cores(settings(threads=str(cores + 7))))[-1]
    assert (found.state, "wait for each other" in found.found) == (WARN, True)
    by_option = settings(options=f"session.intra_op_num_threads = {cores + 7}")
    assert list(findings.cores(by_option))[-1].state == WARN
    assert list(findings.cores(settings()))[-1].state == OK


@pytest.mark.parametrize(("quota", "remedy"), [("50000 100000", "at least one CPU"), ("max 100000", "")])
def test_a_quota_below_one_cpu_is_warned_of(tmp_path: Path, quota: str, remedy: str) -> None:
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text(quota, encoding="utf-8")
    assert remedy in next(findings.cores(settings(), tmp_path)).remedy


@pytest.mark.parametrize(
    ("damage", "subject"),
    [("tokenizer.json", "model"), ("model.onnx", "batching"), ("genai_config.json", "model")],
)
def test_a_broken_model_directory_is_a_failure(tmp_path: Path, damage: str, subject: str) -> None:
    shutil.copytree(DEMO, tmp_path / "model")
    file = tmp_path / "model" / damage
    file.write_bytes(file.read_bytes()[:100])
    found = list(findings.model(settings(model_dir=str(tmp_path / "model"))))
    assert found[-1].state == FAIL
    assert found[-1].subject == subject


def test_a_model_that_does_not_fit_the_memory_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    assert states(list(findings.memory(settings()))) == [OK]
    monkeypatch.setattr(findings, "free_memory", lambda root: 30 * 2**20)
    assert states(list(findings.memory(settings()))) == [WARN]
    monkeypatch.setattr(findings, "free_memory", lambda root: 2**20)
    assert states(list(findings.memory(settings()))) == [FAIL]


def test_a_port_that_is_taken_is_a_failure() -> None:
    port = free_port()
    assert states(list(findings.port(settings(port=str(port))))) == [OK]
    with socket.create_server(("127.0.0.1", port)):
        assert states(list(findings.port(settings(port=str(port))))) == [FAIL]


def test_a_cache_that_cannot_be_written_is_warned_of(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert states(list(findings.cache(settings(cache_dir=str(tmp_path / "file" / "cache"))))) == [WARN]
    assert states(list(findings.cache(settings(cache_dir=str(tmp_path / "cache"))))) == [OK]
    assert states(list(findings.cache(settings(cache_dir="none")))) == [OK]


def test_an_option_without_effect_is_warned_of() -> None:
    found = list(findings.checked_settings(settings(options="session.inter_op_num_threads = 2")))
    assert states(found) == [OK, WARN]
