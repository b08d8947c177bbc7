"""What the server reports about itself."""

import os
import sys
from pathlib import Path

import psutil
import pytest

from genai_server import __version__
from genai_server.system.resources import in_ranges
from tests.running_server import RunningServer, wait_until
from tests.server_here import run_here, starts_held


def test_healthz_says_what_is_served_where(scripted: RunningServer) -> None:
    health = scripted.health()
    served = {"status": "ok", "backend": "onnx-genai", "device": "scripted:0,scripted:1", "model_dir": "./models/demo"}
    assert health == health | served | {"version": __version__}
    assert list(health["devices"]) == ["scripted:0", "scripted:1"]
    device = health["devices"]["scripted:0"]
    assert device == device | {"state": "ready", "restarts": 0, "model": "demo"}
    assert device["pid"] != scripted.process.pid
    assert "error" not in device
    (model,) = health["models"].values()
    assert model["chat_template"] == ["reasoning of earlier answers: left out"]
    assert scripted.client.get("/health").json() == scripted.client.get("/readyz").json()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell")
def test_healthz_says_which_cores_an_engine_has(demo: RunningServer, scripted: RunningServer) -> None:
    cores = demo.health()["devices"]["cpu"]["cores"]
    assert cores == {"cpus": in_ranges(os.sched_getaffinity(0)), "threads": 1, "node": None}
    assert "cores" not in scripted.health()["devices"]["scripted:0"]


@pytest.mark.parametrize(
    ("devices", "status"),
    [(["scripted:0"], "degraded"), (["scripted:1"], "degraded"), (["scripted:0", "scripted:1"], "failed")],
)
def test_healthz_stays_200_and_says_that_devices_are_terminated(
    own_scripted: RunningServer, devices: list[str], status: str
) -> None:
    try:
        for device in devices:
            assert own_scripted.options(terminate_session="1", device=device).status_code == 200
        response = own_scripted.client.get("/healthz")
    finally:
        own_scripted.recover()
    assert (response.status_code, response.json()["status"]) == (200, status)
    assert own_scripted.health()["status"] == "ok"


def test_healthz_says_that_a_device_has_died_or_failed(own_folder: Path) -> None:
    with run_here(own_folder, "--device", "scripted:0,scripted:1", "--max-restarts", "0") as server:
        for device, status in (("scripted:0", "degraded"), ("scripted:1", "failed")):
            psutil.Process(server.device(device)["pid"]).kill()
            wait_until(lambda: server.device(device)["state"] == "failed")  # noqa: B023
            assert server.health()["status"] == status
        assert server.client.get("/livez").status_code == 503


def test_healthz_has_failed_while_the_only_engine_restarts(own_folder: Path) -> None:
    with run_here(own_folder, "--device", "scripted") as server:
        with starts_held():
            psutil.Process(server.device("scripted")["pid"]).kill()
            wait_until(lambda: server.device("scripted")["state"] == "restarting")
            assert server.health()["status"] == "failed"
        wait_until(lambda: server.health()["status"] == "ok")


def test_without_a_key_the_status_is_shown(tmp_path: Path) -> None:
    settings = {"GENAI_API_KEYS": "a-key-of-sixteen-characters"}
    with run_here(tmp_path, "--device", "scripted", settings=settings) as server:
        assert server.health() == {"status": "ok", "devices": {"scripted": {"state": "ready"}}}
