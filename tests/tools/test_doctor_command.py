"""What doctor reports about misconfigured machines."""

import importlib.metadata
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from genai_server.cli import main
from genai_server.config.settings import Settings
from genai_server.config.sources import load_settings
from genai_server.model_files.model_memory import RUNTIME
from genai_server.system.resources import Core, Node, usable_cores
from genai_server.tools import doctor_command
from genai_server.tools.doctor_command import FAIL, OK, WARN, Finding
from tests.model_edits import base_model, edited_config
from tests.recorded_cpus import write_cpus
from tests.running_server import DEMO, ROOT, RunningServer, clean_environment, free_port, run_server


def settings(**options: str) -> Settings:
    return load_settings({"model_dir": str(DEMO)} | options, environ={}, dotenv=None)


def states(found: Iterable[Finding]) -> list[str]:
    return [finding.state for finding in found]


def of_model(directory: Path = DEMO, **options: str) -> list[Finding]:
    """What is found of a model, which is served as demo."""
    return list(doctor_command.model(settings(model_dir=str(directory), model_name="demo", **options), "demo"))


def checked(**options: str) -> list[Finding]:
    """What is found of the settings themselves."""
    return list(doctor_command.checked_settings(settings(**options)))


def install(monkeypatch: pytest.MonkeyPatch, packages: dict[str, str]) -> None:
    """Have only these packages appear to be installed."""

    def version(name: str) -> str:
        if name not in packages:
            raise importlib.metadata.PackageNotFoundError(name)
        return packages[name]

    monkeypatch.setattr(importlib.metadata, "version", version)


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
    assert "device cpu" not in printed  # it would only repeat the reason


def test_doctor_takes_the_model_as_serve_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, printed = doctor(capsys, str(DEMO), "--cache-dir", str(tmp_path), "--models-dir", str(DEMO.parent))
    assert (status, f"model: {DEMO}" in printed) == (0, True)


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        (
            ["dmo", "--models-dir", str(DEMO.parent)],
            ['fail  settings: no model "dmo" here or in', "did you mean demo?"],
        ),
        ([str(DEMO), "--models", f"a={DEMO}"], [f"fail  settings: both MODEL={DEMO} and --models"]),
        ([str(DEMO), "--model-dir", str(DEMO)], [f"fail  settings: both MODEL={DEMO} and --model-dir"]),
        (["--max-length", "many"], ['fail  settings: --max-length="many"']),
        (["--options", "session.execution_mod = 1"], ["did you mean execution_mode?"]),
    ],
)
def test_wrong_settings_are_a_finding(options: list[str], lines: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    status, printed = doctor(capsys, *options)
    assert (status, [line for line in lines if line not in printed]) == (1, [])


def test_device_that_cannot_load_shows_the_librarys_reason(capsys: pytest.CaptureFixture[str]) -> None:
    status, printed = doctor(capsys, "--device", "openvino,scripted", "--model-dir", str(DEMO), "--cache-dir", "none")
    lines = ("fail  device openvino: OpenVINO", "ok    device scripted: ready")
    assert (status, [line for line in lines if line not in printed]) == (1, [])


@pytest.mark.slow
def test_the_reason_of_a_failed_load_is_printed_once() -> None:
    """In a separate process, because pytest captures log records."""
    command = [sys.executable, "-m", "genai_server", "doctor", "--port", "0", "--device", "openvino"]
    command += ["--model-dir", str(DEMO), "--cache-dir", "none"]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, check=False)
    (reason,) = re.findall(r"^fail  device openvino: (.*)$", done.stdout, re.MULTILINE)
    assert (done.stdout + done.stderr).count(reason) == 1


@pytest.mark.parametrize(
    ("installed", "state", "words"),
    [
        ({}, FAIL, "exactly one of them"),
        ({"onnxruntime-genai": "0.18.0", "onnxruntime-genai-cuda": "0.18.0"}, FAIL, "pip uninstall"),
        ({"onnxruntime-genai": "0.19.0", "onnxruntime": "1"}, WARN, "is not tested"),
        ({"onnxruntime-genai": "0.18.1", "onnxruntime": "1"}, OK, ""),
    ],
)
def test_exactly_one_library_of_the_tested_version_is_right(
    installed: dict[str, str], state: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, installed)
    library = list(doctor_command.versions())[1]
    assert (library.state, words in library.remedy) == (state, True)


def test_the_runtime_of_a_gpu_is_known_by_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, {"onnxruntime-genai-cuda": "0.18.0", "onnxruntime-gpu": "1.31.1"})
    monkeypatch.setattr(importlib.metadata, "packages_distributions", lambda: {"onnxruntime": ["onnxruntime-gpu"]})
    found = list(doctor_command.versions())[-1]
    assert (found.state, found.found) == (OK, "onnxruntime-genai-cuda 0.18.0, onnxruntime-gpu 1.31.1")


def test_an_onnx_runtime_that_does_not_load_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = doctor_command.providers()
    assert (found.state, found.found) == (OK, "cpu")
    monkeypatch.setattr("sys.executable", shutil.which("false"))
    assert states(doctor_command.providers()) == [FAIL]


def test_idle_or_waiting_threads_get_a_warning() -> None:
    more = usable_cores() + 7
    found = list(doctor_command.cores(settings(threads=str(more))))[-1]
    assert (found.state, "wait for each other" in found.found) == (WARN, True)
    by_option = settings(options=f"session.intra_op_num_threads = {more}")
    assert list(doctor_command.cores(by_option))[-1].state == WARN
    assert list(doctor_command.cores(settings()))[-1].state == OK


@pytest.mark.parametrize(("quota", "remedy"), [("50000 100000", "at least one CPU"), ("max 100000", "")])
def test_quota_below_one_cpu_gets_a_warning(tmp_path: Path, quota: str, remedy: str) -> None:
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text(quota, encoding="utf-8")
    assert remedy in next(doctor_command.cores(settings(), tmp_path)).remedy


@pytest.fixture
def two_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of a machine with two nodes of eight cores and 900 MiB each."""
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(16)), raising=False)
    write_cpus(tmp_path, {0: "0-7", 1: "8-15"}, free_mib=900)
    return tmp_path


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells nodes")
def test_nodes_are_shown_with_advice_or_with_their_engines(two_nodes: Path) -> None:
    together = {finding.subject: finding for finding in doctor_command.cores(settings(), two_nodes)}
    assert together["NUMA nodes"].found == "0 has 8 cores, 900 MiB free; 1 has 8 cores, 900 MiB free"
    assert "--device cpu:0,cpu:1 would run an engine on each" in together["NUMA nodes"].remedy
    apart = {finding.subject: finding for finding in doctor_command.cores(settings(device="cpu:0,cpu:1"), two_nodes)}
    assert apart["NUMA nodes"].remedy == ""
    assert apart["threads of cpu:1"].found == "8 threads on CPUs 8-15 of NUMA node 1"
    few = list(doctor_command.cores(settings(device="cpu:0,cpu:1", threads="4"), two_nodes))[-1]
    assert (few.state, few.found) == (WARN, "4 on 8 cores: the others idle")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells nodes")
def test_a_node_with_too_little_memory_gets_a_warning(two_nodes: Path) -> None:
    write_cpus(two_nodes, {0: "0-7", 1: "8-15"}, free_mib=9)
    found = {finding.subject: finding for finding in doctor_command.memory(settings(device="cpu:0,cpu:1"), two_nodes)}
    assert "NUMA node 1 has 9 MiB free" in found["memory of cpu:1"].found


def test_a_device_without_a_node_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [Node(number, (Core((number,)),)) for number in range(2)]
    monkeypatch.setattr("genai_server.supervisor.supervisor.numa_nodes", lambda: nodes)
    found = checked(device="cpu:0,cpu:2")[0]
    assert (found.state, "GENAI_DEVICE=cpu:0,cpu:2: cpu:2: this process may use no core" in found.found) == (FAIL, True)


def damaged(tmp_path: Path, *files: str) -> Path:
    """A copy of the demo model with a tenth of each of these files."""
    shutil.copytree(DEMO, tmp_path / "model")
    for name in files:
        file = tmp_path / "model" / name
        os.truncate(file, file.stat().st_size // 10)
    return tmp_path / "model"


def test_each_broken_file_of_a_model_is_a_failure(tmp_path: Path) -> None:
    files = ["genai_config.json", "tokenizer.json", "model.onnx.data"]
    model = damaged(tmp_path, *files)
    assert states(of_model(model)) == [FAIL, FAIL]  # without the configuration, the kind of weights is unknown
    shutil.copy(DEMO / "genai_config.json", model)
    found = of_model(model)
    assert {(finding.state, finding.subject) for finding in found} == {(FAIL, "model")}
    assert [name for name in files if any(str(model / name) in finding.found for finding in found)] == files[1:]
    assert all(finding.remedy for finding in found)


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("model.onnx", "\0" * 100, "cannot be read"),
        ("tokenizer.json", "{}", "cannot be loaded"),
        ("chat_template.jinja", "{% if %}", "chat template is not valid"),
        ("genai_config.json", "{}", "lacks or has a wrong value"),
    ],
)
def test_complete_but_invalid_model_file_is_a_failure(tmp_path: Path, file: str, text: str, words: str) -> None:
    model = damaged(tmp_path)
    (model / file).write_text(text, encoding="utf-8")
    (found,) = of_model(model)
    assert (found.state, words in found.found, found.found.count(str(model)) <= 1) == (FAIL, True, True)


def test_graph_that_cannot_be_batched_gets_a_warning(tmp_path: Path) -> None:
    model = damaged(tmp_path)
    with edited_config(model) as config:
        config["model"]["decoder"]["num_hidden_layers"] = 99
    found = of_model(model)
    assert states(found) == [OK, WARN]
    assert len(found[-1].found) < 200


def test_model_without_a_chat_template_gets_a_warning(tmp_path: Path) -> None:
    directory = base_model(tmp_path / "base")
    found = of_model(directory)
    assert states(found) == [OK, WARN, OK]
    assert "has no chat template: it takes raw prompts (/v1/completions)" in found[1].found
    assert "GENAI_CHAT_TEMPLATE" in found[1].remedy
    assert states(of_model(directory, chat_template="chatml")) == [OK, OK]
    (wrong,) = of_model(directory, chat_template="nobodys")
    assert (wrong.state, "nobodys: no such file" in wrong.found) == (FAIL, True)


def test_each_of_several_models_is_checked_under_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = damaged(tmp_path, "model.onnx.data")
    status, printed = doctor(capsys, "--models", f"small={DEMO},big={model},none={tmp_path}/none")
    lines = (
        "ok    model small: ",
        "ok    batching of small: ",
        f"fail  model big: {model / 'model.onnx.data'} has ",
        f"fail  model none: directory {tmp_path}/none does not exist\n      → genai-server serve OWNER",
    )
    assert (status, [line for line in lines if line not in printed], "device cpu" in printed) == (1, [], False)


def test_models_are_loaded_and_those_on_demand_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--models", f"small={DEMO},big={DEMO}", "--device", "scripted", "--reload", "true")
    status, printed = doctor(capsys, *options)
    assert status == 0
    for name in ("small", "big"):
        assert f"ok    device scripted of {name}: ready" in printed
    assert "weights of 2 models need" in printed
    status, printed = doctor(capsys, *options, "--max-models", "1")
    assert status == 0
    assert "ok    device scripted of small: ready" in printed
    assert "ok    model big: is loaded by its first request (--max-models); not tried now" in printed


def test_settings_without_effect_get_a_warning() -> None:
    found = checked(reload="true", workers="2")
    assert states(found) == [WARN, OK]
    assert "one API process only; one is started" in found[0].found
    assert states(checked(options="session.inter_op_num_threads = 2")) == [OK, WARN]


def test_an_option_is_checked_for_each_model_that_it_is_for() -> None:
    models = f"small={DEMO},big={DEMO}"
    (found,) = checked(models=models, options="models.big.session.levle = 1")
    assert (found.state, "did you mean level?" in found.found) == (FAIL, True)
    more = settings(models=models, options="models.big.session.intra_op_num_threads = 900")
    assert states(doctor_command.cores(more))[-2:] == [OK, WARN]


@pytest.mark.parametrize(
    ("options", "words"),
    [({"host": "0.0.0.0"}, "there are no API keys"), ({"tls_cert": "/none.pem"}, "GENAI_TLS_CERT=/none.pem")],
)
def test_configuration_that_serve_refuses_is_a_failure(options: dict[str, str], words: str) -> None:
    (found,) = checked(**options)
    assert (found.state, words in found.found, bool(found.remedy)) == (FAIL, True, True)


def test_unknown_variable_gets_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENAI_THREAD", "3")
    found = Finding(WARN, "settings", "GENAI_THREAD is not a setting", "did you mean GENAI_THREADS?")
    assert found in checked()


def test_checks_that_need_no_library_run_without_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, {})
    status, printed = doctor(capsys, "--model-dir", str(DEMO), "--cache-dir", "none")
    assert status == 1
    assert [line for line in printed.splitlines() if line.startswith("fail")] == [
        "fail  library: onnxruntime-genai is not installed"
    ]
    assert "ok    batching: the graph can run in a batch" in printed


def test_requests_that_run_one_by_one_without_the_operators_are_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_command, "is_installed", lambda: False)
    found = of_model()[-1]
    assert (found.state, found.subject, "genai-server-native" in found.found) == (WARN, "batching", True)
    on_gpu = of_model(device="cuda")[-1]
    assert (on_gpu.state, on_gpu.subject) == (OK, "batching")


@pytest.mark.slow
def test_scripted_device_needs_no_onnx_runtime(tmp_path: Path) -> None:
    shadow = tmp_path / "shadow"
    for name in ("onnxruntime", "onnxruntime_genai"):
        (shadow / name).mkdir(parents=True)
        (shadow / name / "__init__.py").write_text("raise ImportError('not installed')", encoding="utf-8")
    paths = os.pathsep.join([str(shadow), *filter(None, [os.environ.get("PYTHONPATH")])])
    with run_server(tmp_path, "--device", "scripted", settings={"PYTHONPATH": paths}) as server:
        assert server.chat("say hello").json()["content"] == "hello"


def test_a_model_that_does_not_fit_the_memory_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    assert states(doctor_command.memory(settings())) == [OK, OK]
    monkeypatch.setattr(doctor_command, "free_memory", lambda root: 2**20)
    assert states(doctor_command.memory(settings())) == [FAIL]


@pytest.mark.parametrize("model", ["demo-embeddings", "demo-speech"])
def test_draft_model_without_effect_is_a_warning(model: str) -> None:
    given = settings(model_dir=str(ROOT / "models" / model), draft_model=str(DEMO))
    (warned,) = (found for found in doctor_command.model(given, next(iter(given.served))) if found.state == WARN)
    assert warned.found.startswith(f"GENAI_DRAFT_MODEL={DEMO} has no effect: ")


def test_the_context_is_reported_with_what_limits_it(monkeypatch: pytest.MonkeyPatch) -> None:
    _, whole = doctor_command.memory(settings())
    assert whole.found == "2048 tokens (the model's context); their keys and values take 12 MiB"
    of_two = doctor_command.memory(settings(models=f"a={DEMO},b={DEMO}"))
    assert [found.subject for found in of_two] == ["memory", "context of a", "context of b"]
    monkeypatch.setattr(doctor_command, "free_memory", lambda root: RUNTIME + 22 * 2**20)
    _, limited = doctor_command.memory(settings())
    assert limited.state == WARN
    reason = r"memory: \d+ bytes for keys and values, its share of the free.*"
    assert re.fullmatch(rf"1024 tokens \({reason}the model's context is 2048", limited.found)
    _, set_too_long = doctor_command.memory(settings(max_length="2000", kv_cache_bytes="1000000"))
    assert set_too_long.state == FAIL


def test_a_port_that_another_program_has_taken_is_a_failure(scripted: RunningServer) -> None:
    given = settings(port=str(free_port()))
    assert states(doctor_command.port(given)) == [OK]
    with socket.create_server(("127.0.0.1", given.port)):
        assert states(doctor_command.port(given)) == [FAIL]
    port = scripted.url.rpartition(":")[2]
    running = Finding(OK, "port", f"a genai-server is running on 127.0.0.1 port {port}")
    assert list(doctor_command.port(settings(port=port))) == [running]


@pytest.mark.parametrize(("cache", "state"), [("{}/file/cache", WARN), ("{}/cache", OK), ("none", OK)])
def test_unwritable_cache_gets_a_warning(tmp_path: Path, cache: str, state: str) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert states(doctor_command.cache(settings(cache_dir=cache.format(tmp_path)))) == [state]


@pytest.mark.parametrize(
    ("options", "state", "words"),
    [
        ({"response_store_file": "missing/store"}, FAIL, "GENAI_RESPONSE_STORE_FILE=missing/store: cannot be written"),
        ({"usage_file": "README.md"}, FAIL, "GENAI_USAGE_FILE=README.md: cannot be used: file is not a database"),
        ({"files_dir": "README.md"}, FAIL, "GENAI_FILES_DIR=README.md: cannot be written"),
        ({"profile_dir": "README.md/profiles"}, WARN, "GENAI_PROFILE_DIR=README.md/profiles: cannot be written"),
    ],
)
def test_places_that_cannot_be_written_are_findings(options: dict[str, str], state: str, words: str) -> None:
    found = [(one.state, one.remedy) for one in checked(**options) if words in one.found]
    assert found == [(state, "let this user write there, or name another place")]


def test_a_model_with_paged_attention_fails(tmp_path: Path) -> None:
    directory = damaged(tmp_path)
    with edited_config(directory) as config:
        config["model"]["decoder"]["inputs"]["block_table"] = "block_table"
    assert [one.state for one in of_model(directory) if "use_paged_attention" in one.found] == [FAIL]


def test_a_model_that_was_not_tried_for_lack_of_memory_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genai_server.supervisor.kv_cache_size.free_memory", lambda **_: 2**20)
    (found,) = doctor_command.devices(settings())
    assert (found.state, found.subject) == (FAIL, "model demo")
    assert "1 MiB are free" in found.found
