"""What tune measures, selects and writes."""

import shutil
import sys
import tomllib
from pathlib import Path

import pytest

from genai_server.cli import main
from genai_server.plain_tables import plain_report
from genai_server.tools.tune import measured as measured_rates
from genai_server.tools.tune import tune_command as command
from genai_server.tools.tune.block_sizes import table_of_blocks
from genai_server.tools.tune.measured import Measured, Rates, smallest_good, table
from genai_server.tools.tune.tune_command import busy
from tests.fake_builder import fake_builder
from tests.running_server import DEMO


def measured() -> Measured:
    return Measured(
        prefill_by_threads={1: 100.0, 2: 180.0, 4: 175.0},
        decode_by_threads={1: 50.0, 2: 80.0, 4: 60.0},
        decode_by_batch={1: 80.0, 4: 200.0, 8: 298.0, 16: 300.0},
        prefill_by_chunk={32: 100.0, 64: 170.0, 128: 180.0},
    )


def test_best_threads_and_smallest_good_sizes_are_chosen() -> None:
    assert measured().best() == {"threads": 2, "max_batch_size": 8, "prefill_chunk": 64}


@pytest.mark.parametrize(("rates", "expected"), [((190.0, 90.0), {"a": "1"}), ((185.0, 82.0), {}), ((90.0, 160.0), {})])
def test_entry_of_the_session_is_used_if_it_is_faster(rates: Rates, expected: dict[str, str]) -> None:
    found = measured()
    found.by_entry = {("a", "1"): rates, ("b", "1"): (180.0, 70.0)}
    assert found.best_entry == expected
    lines = plain_report([table(found, found.best())]).splitlines()
    assert any(line.startswith("a = 1 ") and line.endswith("← best") for line in lines) == bool(expected)


def test_best_entry_is_written_into_its_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured_rates, "_MIN_GAIN", 0.0)
    target = tmp_path / "genai-server.toml"
    target.write_text('[session]\n"session.intra_op.allow_spinning" = "1"\n', encoding="utf-8")
    assert tune("--config", str(target)) == 0
    found = tomllib.loads(target.read_text(encoding="utf-8"))["session"]
    (name,) = found.keys() - {"session.intra_op.allow_spinning"}
    assert found["session.intra_op.allow_spinning"] == "1"
    printed = capsys.readouterr().out
    assert f"{name} = {found[name]}" in printed
    assert "allow_spinning" not in printed


def test_file_with_an_inline_table_is_not_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured_rates, "_MIN_GAIN", 0.0)
    target = tmp_path / "genai-server.toml"
    target.write_text("session = { enable_mem_pattern = false }\n", encoding="utf-8")
    assert tune("--config", str(target)) == 2
    assert "write session as a table" in capsys.readouterr().err
    assert target.read_text(encoding="utf-8") == "session = { enable_mem_pattern = false }\n"


def test_batch_size_is_unchanged_without_a_batch() -> None:
    found = measured()
    found.decode_by_batch = {1: 80.0}
    assert found.best() == {"threads": 2, "prefill_chunk": 64}


@pytest.mark.parametrize(("share", "expected"), [(1.0, 3), (0.9, 2), (0.1, 1)])
def test_the_smallest_that_is_good_enough_is_taken(share: float, expected: int) -> None:
    assert smallest_good({1: 10.0, 2: 95.0, 3: 100.0}, share) == expected


def test_the_table_marks_the_best() -> None:
    lines = plain_report([table(measured(), measured().best())]).splitlines()
    assert [line.split("  ")[0] for line in lines if line.endswith("← best")] == [
        "threads = 2",
        "max_batch_size = 8",
        "prefill_chunk = 64",
    ]


@pytest.fixture(autouse=True)
def few_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure only a few sizes of batches and chunks; tests/test_telemetry.py runs the command with all."""
    monkeypatch.setattr(command, "_BATCHES", (1, 4))
    monkeypatch.setattr(command, "_CHUNKS", (32, 64))


def tune(*arguments: str) -> int:
    return main(["tune", str(DEMO), "--seconds", "0.01", "--cache-dir", "none", *arguments])


def test_the_best_is_written_into_the_file_and_all_else_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "genai-server.toml"
    target.write_text("# mine\nthreads = 7\nport = 9000\n[session]\nenable_mem_pattern = false\n", encoding="utf-8")
    assert tune("--config", str(target)) == 0
    text = target.read_text(encoding="utf-8")
    found = tomllib.loads(text)
    assert "# mine" in text
    assert found["port"] == 9000
    assert found["session"]["enable_mem_pattern"] is False
    assert found.keys() == {"threads", "max_batch_size", "prefill_chunk", "port", "session"}
    printed = capsys.readouterr().out
    assert f"threads = {found['threads']} " in printed
    assert "block size: 32; --original DIR measures others" in printed


def test_a_dry_run_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tune("--config", str(tmp_path / "new.toml"), "--dry-run") == 0
    assert "← best" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_fixed_threads_leave_nothing_to_tune(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "genai-server.toml"
    target.write_text("[session]\nintra_op_num_threads = 1\n", encoding="utf-8")
    assert tune("--config", str(target)) == 2
    assert "intra_op_num_threads=1: remove it" in capsys.readouterr().err


def test_missing_model_ends_with_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", str(tmp_path / "none")]) == 2
    assert f'no model "{tmp_path}/none" here' in capsys.readouterr().err


def test_a_model_that_cannot_be_run_ends_with_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(DEMO, tmp_path / "model")
    with (tmp_path / "model" / "model.onnx.data").open("r+b") as file:
        file.truncate(1000)
    assert main(["tune", str(tmp_path / "model"), "--cache-dir", "none", "--dry-run"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert "cannot be run" in lines[-1]
    assert "see genai-server doctor" in lines[-1]


def test_variable_that_overrides_the_file_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GENAI_PREFILL_CHUNK", "77")
    assert tune("--config", str(tmp_path / "new.toml")) == 0
    assert "GENAI_PREFILL_CHUNK=77 in the environment or .env overrides it" in capsys.readouterr().out


def test_options_of_the_served_name_are_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GENAI_MODELS", f"other={tmp_path},demo={DEMO}")
    monkeypatch.setenv("GENAI_OPTIONS", "models.demo.session.intra_op_num_threads = 1")
    assert tune("--dry-run") == 2
    assert "intra_op_num_threads=1: remove it" in capsys.readouterr().err


def test_batches_are_not_measured_for_a_generator(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GENAI_SCHEDULER", "generator")
    assert tune("--dry-run") == 0
    printed = capsys.readouterr().out
    assert "max_batch_size = 1 " in printed
    assert "max_batch_size = 2" not in printed


def test_unusable_cores_are_reported(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genai_server.tools.doctor.machine.cpu_quota", lambda root: 0.5)
    assert tune("--dry-run") == 0
    assert "a quota of 0.5 CPUs, which affects the measurement" in capsys.readouterr().err


@pytest.mark.parametrize(("percent", "is_busy"), [(4.0, False), (50.0, True)])
def test_busy_machine_is_reported(percent: float, is_busy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.cpu_percent", lambda interval: percent)
    monkeypatch.setattr("psutil.cpu_count", lambda: 4)
    assert busy().startswith("other programs use 2.0 of 4 cores, ") == is_busy
    assert bool(busy()) == is_busy


def test_missing_library_is_reported_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime_genai", None)
    assert tune("--dry-run") == 2
    assert "onnxruntime-genai is not installed; install" in capsys.readouterr().err


def test_unwritable_file_is_reported_before_any_measurement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tune("--config", str(tmp_path / "none" / "new.toml")) == 2
    printed = capsys.readouterr()
    assert "new.toml: cannot be written" in printed.err
    assert printed.out == ""


@pytest.mark.parametrize("seconds", ["0", "-1", "nan"])
def test_a_measurement_takes_some_time(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert tune("--dry-run", "--seconds", seconds) == 2
    assert "it must be more than 0" in capsys.readouterr().err


# block sizes


@pytest.fixture
def original(tmp_path: Path) -> Path:
    folder = tmp_path / "original"
    folder.mkdir()
    (folder / "config.json").write_text("{}", encoding="utf-8")
    return folder


def test_block_sizes_are_built_measured_and_removed(
    tmp_path: Path, original: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(fake_builder(tmp_path / "libraries")))
    model = tmp_path / "models" / "mine"
    shutil.copytree(DEMO, model)
    arguments = ("--seconds", "0.01", "--cache-dir", "none", "--original", str(original), "--dry-run")
    assert main(["tune", str(model), *arguments]) == 0
    printed = capsys.readouterr().out.splitlines()
    rows = [line for line in printed if line.startswith("block size ")]
    assert [row.split()[2] for row in rows] == ["32", "128"]
    assert sum("best" in row for row in rows) == 1
    assert printed[-1].endswith(("best block size", f"export {original} --precision int8 --extra block_size=128"))
    assert [path.name for path in model.parent.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("decode", "said"), [(30.0, "the model has the best block size"), (50.0, "export X --extra block_size=128")]
)
def test_the_best_block_size_is_that_of_both_rates_together(decode: float, said: str) -> None:
    report = plain_report(table_of_blocks({32: (100.0, 50.0), 128: (140.0, decode)}, DEMO, "X"))
    assert report.endswith(said)


def test_invalid_original_is_refused_before_any_measurement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tune("--original", str(tmp_path), "--dry-run") == 2
    assert "config.json is missing" in capsys.readouterr().err


def test_a_builder_that_fails_ends_with_its_last_lines(
    tmp_path: Path, original: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    libraries = fake_builder(tmp_path / "libraries")
    (libraries / "onnxruntime_genai" / "models" / "builder.py").write_text("raise SystemExit('out of memory')")
    monkeypatch.setenv("PYTHONPATH", str(libraries))
    model = tmp_path / "models" / "mine"
    shutil.copytree(DEMO, model)
    target = tmp_path / "found.toml"
    arguments = ("--seconds", "0.01", "--cache-dir", "none", "--original", str(original), "--config", str(target))
    assert main(["tune", str(model), *arguments]) != 0
    printed = capsys.readouterr()
    assert "out of memory" in printed.err
    assert "← best" in printed.out
    assert target.exists()
    assert sorted(path.name for path in model.parent.iterdir()) == ["mine", "mine-blocks-of-32.log"]
