"""The endpoints of profile sessions, on a real server with profiles of the demo model."""

import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from genai_server.cli import main
from tests.profiles.files import write_session
from tests.running_server import DEMO, RunningServer
from tests.server_here import run_here

PATH = "/v1/admin/profiles"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with a session `capital` that profiled a complete answer."""
    with run_here(tmp_path_factory.mktemp("profiles"), "--model-dir", str(DEMO)) as server:
        assert get(server, "").json() == {"object": "list", "data": []}
        server.options(enable_profiling="capital")
        assert server.chat("What is the capital of France?").status_code == 200
        server.options(enable_profiling="0")
        yield server


def get(server: RunningServer, path: str, **params: Any) -> httpx.Response:
    return server.client.get(PATH + path, params=params)


def profile_dir(server: RunningServer) -> Path:
    state = server.client.get("/v1/admin/runtime_options").json()
    return Path(state["devices"]["cpu"]["profile_dir"])


def test_a_session_is_listed_with_its_request_files_and_tokens(server: RunningServer) -> None:
    (found,) = get(server, "").json()["data"]
    files = list(profile_dir(server).glob("capital_*.json"))
    assert found["id"].startswith("capital_")
    assert (found["device"], found["model"], found["open"]) == ("cpu", "demo", False)
    assert (found["files"], found["bytes"]) == (len(files), sum(path.stat().st_size for path in files))
    assert (len(found["requests"]), found["ended"] > found["started"]) == (1, True)
    latest = get(server, "/latest").json()
    assert get(server, f"/{found['id']}").json() == latest
    decodes = [one["token"] for one in latest["passes"] if one["phase"] == "decode"]
    assert decodes == list(range(1, len(decodes) + 1))


def test_the_report_comes_as_json_text_and_page(server: RunningServer) -> None:
    report = get(server, "/latest/report").json()
    assert "PackedMatMul" in [operator["name"] for operator in report["operators"]]
    assert "PackedMatMul" in get(server, "/latest/report", format="text").text
    page = get(server, "/latest/report", format="html")
    assert page.headers["content-type"].startswith("text/html")
    assert page.text.startswith("<!doctype html>")


def test_the_command_line_reports_on_a_server(
    server: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, missing = tmp_path / "out.json", tmp_path / "missing.json"
    assert main(["profile", "report", server.url]) == 0
    assert "PackedMatMul" in capsys.readouterr().out
    assert main(["profile", "trace", server.url, str(out)]) == 0
    assert f"{out}: {out.stat().st_size} bytes" in capsys.readouterr().out
    assert json.loads(out.read_text(encoding="utf-8")) == get(server, "/latest/trace").json()
    for command in (["report", server.url], ["trace", server.url, str(missing)]):
        assert main(["profile", *command, "--session", "missing"]) == 1
        assert "no session" in capsys.readouterr().err
    assert not missing.exists()


def test_the_trace_of_a_session_can_be_downloaded(server: RunningServer) -> None:
    response = get(server, "/latest/trace")
    assert response.headers["content-disposition"].endswith('.trace.json"')
    assert any(event["ph"] == "X" for event in response.json()["traceEvents"])


def test_files_are_returned_unchanged(server: RunningServer) -> None:
    session = get(server, "/latest").json()
    name = session["passes"][0]["file"]
    content = (profile_dir(server) / name).read_bytes()
    assert get(server, f"/latest/files/{name}").content == content
    with zipfile.ZipFile(io.BytesIO(get(server, "/latest/files").content)) as archive:
        assert archive.read(name) == content
        assert len(archive.namelist()) == session["files"] + 1


@pytest.mark.parametrize(
    "path", ["/missing", "/missing/report", "/latest/files/x.json", "/latest/files/..%2F..%2Fserver.log"]
)
def test_path_outside_the_manifest_is_404(server: RunningServer, path: str) -> None:
    assert get(server, path).status_code == 404


@pytest.mark.parametrize("params", [{"slow": "0.5"}, {"slow": "nan"}, {"format": "pdf"}])
def test_parameters_out_of_range_are_refused_by_name(server: RunningServer, params: dict[str, str]) -> None:
    response = get(server, "/latest/report", **params)
    assert (response.status_code, response.json()["error"]["param"]) == (400, next(iter(params)))


def test_a_session_is_removed_with_its_files(server: RunningServer) -> None:
    folder = profile_dir(server)
    manifest = write_session(folder, began=1.0)
    response = server.client.delete(f"{PATH}/mine_1")
    assert response.json() == {"id": "mine_1", "object": "profile", "deleted": True}
    assert not manifest.exists()
    assert list(folder.glob("mine_*")) == []
    assert get(server, "/mine_1").status_code == 404


def test_a_session_that_is_written_to_is_not_removed(server: RunningServer) -> None:
    server.options(enable_profiling="running")
    try:
        server.chat("Hello!", max_tokens=3)
        session = get(server, "/latest").json()
        path = f"{PATH}/{session['id']}"
        refused = server.client.delete(path)
        assert (session["open"], refused.status_code) == (True, 400)
        assert "still being written" in refused.json()["error"]["message"]
        assert server.client.get(path).json()["files"] == session["files"]
    finally:
        server.options(enable_profiling="0")
    assert server.client.delete(path).status_code == 200


def test_load_tools_switch_profiling_by_their_own_endpoints(server: RunningServer) -> None:
    for path, prefix in (("/start_profile", "onnxruntime_run_profile"), ("/stop_profile", "0")):
        assert server.client.post(path).json()["devices"]["cpu"]["enable_profiling"] == prefix
