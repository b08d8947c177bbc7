"""`genai-server profile` as an operator uses it, on handmade profiles and on those of a real server."""

import json
from pathlib import Path
from typing import Any

import pytest

from genai_server.cli import main
from tests.profiles.files import DOWN, write_session
from tests.running_server import RunningServer


@pytest.fixture(scope="module")
def recorded(demo: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a real profile: all tokens of an answer of the demo model."""
    demo.options(enable_profiling="recorded")
    response = demo.chat("Count from 1 to 12.", cache_prompt=False)
    state = demo.options(enable_profiling="0").json()["devices"]["cpu"]
    assert response.status_code == 200
    folder = tmp_path_factory.mktemp("recorded")
    for path in Path(state["profile_dir"]).glob("recorded_*"):
        path.rename(folder / path.name)
    return folder


def figures(*arguments: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The report as JSON."""
    assert main(["profile", "report", *arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_report_of_a_real_profile_is_complete(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = figures(str(recorded), capsys=capsys)
    assert report["unread"] == {}
    assert report["session"]["model"] == "demo"
    assert {"onnxruntime", "onnxruntime-genai", "genai-server"} <= set(report["session"]["versions"])
    prefill, decode = report["phases"]
    assert prefill["tokens"] > 10
    assert decode["passes"] == decode["tokens"] == len(report["passes"]) - prefill["passes"]
    assert [one["token"] for one in report["passes"]][-3:] == list(range(decode["passes"] - 2, decode["passes"] + 1))
    assert report["operators"][0]["name"] == "PackedMatMul"
    assert {"layer 0", "layer 5"} <= {share["name"] for share in report["layers"]}
    assert 0 < decode["other_us"] < decode["total_us"]
    assert decode["cores"] > 0


def test_a_node_that_is_made_slow_in_one_token_of_it_is_found(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in recorded.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    before = figures(str(tmp_path), capsys=capsys)
    slowed = before["passes"][20]
    path = tmp_path / slowed["file"]
    events = json.loads(path.read_text(encoding="utf-8"))
    node = next(each for each in events if each["name"] == "/model/layers.3/mlp/up_proj/MatMul_Q8_kernel_time")
    # More than any other pass, which a busy machine may have slowed down.
    added, after = 20 * max(one["duration_us"] for one in before["passes"]), node["ts"] + 1
    for each in events:
        if each is node or each["cat"] == "Session":
            each["dur"] += added
        elif each["ts"] >= after:
            each["ts"] += added
    path.write_text(json.dumps(events), encoding="utf-8")
    slow = figures(str(tmp_path), capsys=capsys)["slow_tokens"][0]
    assert slow["token"] == slowed["token"]
    assert slow["because"][0]["name"] == "/model/layers.3/mlp/up_proj/MatMul_Q8"
    assert slow["because"][0]["operator"] == "PackedMatMul"


def test_a_session_can_be_chosen_and_how_slow_is_slow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_session(tmp_path, began=1.0, slow={3: 450})
    write_session(tmp_path, began=50.0)
    assert figures(str(tmp_path), capsys=capsys)["name"] == "mine_50"
    chosen = (str(tmp_path), "--session", "mine_1", "--slow", "1.2")
    assert [token["token"] for token in figures(*chosen, capsys=capsys)["slow_tokens"]] == [3]
    assert main(["profile", "report", *chosen]) == 0
    text = capsys.readouterr().out
    assert ("MatMulNBits" in text, "3 of req-1" in text) == (True, True)


def test_page_is_written_to_the_given_path(recorded: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert main(["profile", "report", str(recorded), "--html", str(page)]) == 0
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert main(["profile", "report", str(recorded), "--html", str(tmp_path / "nowhere" / "page.html")]) == 2


def test_trace_of_a_real_profile_has_every_event(recorded: Path, tmp_path: Path) -> None:
    out = tmp_path / "trace.json"
    assert main(["profile", "trace", str(recorded), str(out)]) == 0
    events = json.loads(out.read_text(encoding="utf-8"))["traceEvents"]
    files = [json.loads(path.read_text(encoding="utf-8")) for path in recorded.glob("*.json")]
    assert len([each for each in events if each["ph"] == "X"]) == sum(map(len, files))
    tokens = {each["args"]["name"] for each in events if each["name"] == "thread_name"}
    assert len(tokens) >= len(files) - 1


@pytest.mark.parametrize("source", ["{}/nowhere", "http://127.0.0.1:1"])
@pytest.mark.parametrize("command", ["report", "trace"])
def test_missing_profile_or_server_is_reported_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, source: str
) -> None:
    named = source.format(tmp_path)
    assert main(["profile", command, named, *([str(tmp_path / "out.json")] if command == "trace" else [])]) == 1
    error = capsys.readouterr().err
    assert (named in error, error.count("\n")) == (True, 1)
    assert list(tmp_path.iterdir()) == []


def test_a_trace_never_takes_the_place_of_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = write_session(tmp_path, decodes=1)
    profile = tmp_path / f"{manifest.name.partition('.')[0]}_1.json"
    before = profile.read_bytes()
    assert main(["profile", "trace", str(tmp_path), str(profile)]) == 2
    assert profile.read_bytes() == before
    assert DOWN.encode() in before
    assert "is a file of the profile" in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--slow", "0.5"], ["--top", "0"]])
def test_options_out_of_range_are_refused(option: list[str]) -> None:
    with pytest.raises(SystemExit):
        main(["profile", "report", ".", *option])
