"""`genai-server bench` as a user runs it."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from genai_server.cli import main
from tests.running_server import (
    DEMO,
    ROOT,
    RunningServer,
    clean_environment,
    environment_without,
    run_command,
    wait_until,
)
from tests.scraped import scrape

COMMAND = [sys.executable, "-m", "genai_server", "bench"]
QUICK = ["--rounds", "1", "--requests", "2", "--prompt-tokens", "128", "--output-tokens", "8"]


def bench(*options: str, **settings: str) -> "subprocess.CompletedProcess[str]":
    return run_command("bench", *options, environment=clean_environment(**settings))


def test_sweep_of_server_and_library_gives_table_json_and_plot(scripted: RunningServer, tmp_path: Path) -> None:
    files = [tmp_path / "bench.json", tmp_path / "bench.svg"]
    written = ["--json", str(files[0]), "--plot", str(files[1])]
    result = bench("--url", scripted.url, *QUICK, "--concurrency", "1,2", "--library", str(DEMO), *written)
    assert result.returncode == 0, result.stderr
    found = json.loads(files[0].read_text(encoding="utf-8"))
    assert [(each["target"], each["case"]["streams"], each["completed"]) for each in found["summaries"]] == [
        ("library", 1, 2),
        ("library as shipped", 1, 2),
        ("A", 1, 2),
        # Without drafts, for the comparison with the library.
        ("A", 1, 2),
        ("A", 2, 2),
    ]
    assert found["targets"][0]["health"]["probes"] > 0
    assert found["targets"][0]["model"] == "demo"
    assert result.stdout.startswith("sweep, 1 round\nA: http://127.0.0.1:")
    assert "<svg" in files[1].read_text(encoding="utf-8")


def test_refused_field_and_failed_requests_end_with_status_1_and_the_reason(scripted: RunningServer) -> None:
    result = bench("--url", scripted.url, *QUICK, "--body", '{"no_such_field": true}')
    assert (result.returncode, "no_such_field" in result.stderr, result.stderr.count("\n")) == (1, True, 1)
    result = bench("--url", scripted.url, *QUICK, "--prompt-tokens", "5000")
    assert (result.returncode, "failed: A, sweep, 1 at once: 400: " in result.stdout) == (1, True)


def test_missing_libraries_are_named_in_one_line(tmp_path: Path) -> None:
    result = bench(**environment_without("matplotlib", tmp_path))
    assert result.returncode == 2
    assert "install them: " in result.stderr
    assert "bench" in result.stderr.partition("install them: ")[2]
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--plot", "x.pdf"], "x.pdf ends in none of .png, .svg"),
        (["--json", "/none/x.json"], "--json=/none/x.json: the folder does not exist"),
        (["--library", "/none"], "model directory /none does not exist"),
        (["--library", str(DEMO), "--scenario", "prefix"], "--library: only --scenario sweep supports it"),
        (["--body", "[]"], "not a JSON object"),
        (["--rounds", "0"], "0 is not a whole number of at least 1"),
    ],
)
def test_invalid_option_is_reported_before_any_measurement(
    options: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status: object = main(["bench", *options])
    except SystemExit as error:
        status = error.code
    assert (status, reason in capsys.readouterr().err) == (2, True)


@pytest.mark.slow
def test_control_c_ends_it_with_what_was_measured(scripted: RunningServer) -> None:
    def answered() -> float:
        return scrape(scripted).value("request_success_total")

    command, before = [*COMMAND, "--url", scripted.url, *QUICK, "--rounds", "100000"], answered()
    process = subprocess.Popen(command, cwd=ROOT, env=clean_environment(), stdout=subprocess.PIPE, stderr=-1, text=True)
    with process:
        try:
            wait_until(lambda: answered() >= before + 12, 50.0)  # in the second round nothing is imported any more
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate()
        finally:
            process.kill()
    assert process.returncode == 130, errors
    assert "Interrupted: these are the measurements so far." in output
    assert "Traceback" not in errors
