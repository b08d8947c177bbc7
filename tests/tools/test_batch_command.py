"""`genai-server batch`: the real command, with a running server and with one of its own."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from genai_server.cli import main
from tests.apis.batches.inputs import jsonl, line
from tests.running_server import DEMO, ROOT, RunningServer, clean_environment, run_command, wait_until

NUM_LINES = 12


@pytest.fixture(autouse=True)
def no_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genai_server.tools.batch_command.exit_cleanly_on_signals", lambda: None)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "input.jsonl"
    lines = [line(f"{number}", f"say {number}") for number in range(NUM_LINES)]
    lines[3]["body"]["max_tokens"] = -1
    path.write_bytes(jsonl(lines))
    return path


def batch(server: RunningServer, *arguments: object) -> int:
    return main(["batch", *map(str, arguments), "--url", server.url, "--concurrency", "4"])


def read(path: Path) -> dict[str, Any]:
    found = [json.loads(text) for text in path.read_text().splitlines()]
    assert len({each["custom_id"] for each in found}) == len(found)
    return {each["custom_id"]: each["response"] for each in found}


def test_results_and_errors_are_written(
    scripted: RunningServer, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = source.with_name("out.jsonl")
    assert batch(scripted, source, target) == 1
    found = read(target)
    assert {id: each["body"]["choices"][0]["message"]["content"] for id, each in found.items()} == {
        f"{number}": f"{number}" for number in range(NUM_LINES) if number != 3
    }
    (failed,) = read(source.with_name("out.errors.jsonl")).values()
    assert failed["status_code"] == 400
    assert "11 of 12 requests succeeded" in capsys.readouterr().err


def test_the_command_goes_on_where_it_stopped(scripted: RunningServer, source: Path) -> None:
    target, errors = source.with_name("out.jsonl"), source.with_name("out.errors.jsonl")
    batch(scripted, source, target)
    kept = target.read_bytes().splitlines(keepends=True)[:5]
    target.write_bytes(b"".join(kept) + kept[0][:40])
    source.write_bytes(source.read_bytes().replace(b'"max_tokens": -1', b'"max_tokens": 99'))
    assert batch(scripted, source, target) == 0
    assert target.read_bytes().splitlines(keepends=True)[:5] == kept
    assert len(read(target)) == NUM_LINES
    assert not errors.exists()
    assert batch(scripted, source, target) == 0  # nothing is left to do


@pytest.mark.parametrize("content", [b"notes\n", b"notes", None])
def test_a_file_of_something_else_is_not_overwritten(
    scripted: RunningServer, source: Path, content: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    target = source if content is None else source.with_name("notes.txt")
    before = content or source.read_bytes()
    target.write_bytes(before)
    assert batch(scripted, source, target) == 1
    assert "line 1 is not the result of a request" in capsys.readouterr().err
    assert target.read_bytes() == before


def test_input_with_the_name_of_the_errors_is_not_replaced(scripted: RunningServer, source: Path) -> None:
    named = source.rename(source.with_name("out.errors.jsonl"))
    before = named.read_bytes()
    assert batch(scripted, named, source.with_name("out.jsonl")) == 1
    assert named.read_bytes() == before


def test_wrong_lines_or_a_missing_input_are_named_before_any_work(
    scripted: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = tmp_path / "input.jsonl", tmp_path / "out.jsonl"
    assert batch(scripted, source, target) == 1
    assert "input.jsonl cannot be read" in capsys.readouterr().err
    source.write_bytes(jsonl([line("a"), line("a")]) + b"{\n")
    assert batch(scripted, source, target) == 1
    printed = capsys.readouterr().err
    assert f'{source}:2: custom_id "a" is that of an earlier line' in printed
    assert f"{source}:3: the line is not JSON" in printed
    assert not target.exists()


def test_a_server_of_its_own_answers_for_any_model(tmp_path: Path) -> None:
    source, target = tmp_path / "input.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(jsonl(line(f"{number}", "2 + 3?", model="gpt-4o", max_tokens=8) for number in range(3)))
    done = run_command("batch", str(source), str(target), "--model", str(DEMO), environment=clean_environment())
    assert done.returncode == 0, done.stderr
    assert {each["body"]["choices"][0]["message"]["content"] for each in read(target).values()} == {"2 + 3 = 5."}


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for one process")
def test_ctrl_c_keeps_what_is_done(scripted: RunningServer, tmp_path: Path) -> None:
    source, target = tmp_path / "input.jsonl", tmp_path / "out.jsonl"
    lines = [line(f"{number}", "say yes" if number < 8 else "count 999; delay 0.05") for number in range(20)]
    source.write_bytes(jsonl(lines))
    command = [sys.executable, "-m", "genai_server", "batch", str(source), str(target), "--url", scripted.url]
    running = subprocess.Popen(command, cwd=ROOT, env=clean_environment(), stderr=subprocess.PIPE)
    wait_until(lambda: target.exists() and target.read_bytes().count(b"\n") == 8)
    running.send_signal(signal.SIGINT)
    _, printed = running.communicate(timeout=90)
    assert running.returncode == 130
    assert b"the same command continues" in printed
    assert len(read(target)) == 8
