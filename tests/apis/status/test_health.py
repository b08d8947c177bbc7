"""What the server reports about itself."""

from genai_server import __version__
from tests.running_server import RunningServer


def test_healthz_says_what_is_served_where(scripted: RunningServer) -> None:
    health = scripted.health()
    assert health["status"] == "ok"
    assert health["backend"] == "onnx-genai"
    assert health["device"] == "scripted:0,scripted:1"
    assert health["model_dir"] == "./models/demo"
    assert health["version"] == __version__
    assert list(health["devices"]) == ["scripted:0", "scripted:1"]
    device = health["devices"]["scripted:0"]
    assert device["state"] == "ready"
    assert device["pid"] != scripted.process.pid
    assert device["restarts"] == 0
    assert device["model"] == "demo"
    assert "error" not in device


def test_healthz_says_how_conversations_are_adapted(scripted: RunningServer) -> None:
    (model,) = scripted.health()["models"].values()
    assert model["chat_template"] == ["reasoning of earlier answers: left out"]


def test_the_openapi_description_is_served(scripted: RunningServer) -> None:
    paths = scripted.client.get("/openapi.json").json()["paths"]
    assert {"/v1/chat", "/v1/chat/stream", "/v1/chat/completions", "/v1/models", "/v1/admin/runtime_options"} < set(
        paths
    )


def test_readyz_is_200_while_an_engine_takes_work(scripted: RunningServer) -> None:
    assert scripted.client.get("/readyz").status_code == 200


def test_health_is_another_name_of_readyz(scripted: RunningServer) -> None:
    assert scripted.client.get("/health").json() == scripted.client.get("/readyz").json()
