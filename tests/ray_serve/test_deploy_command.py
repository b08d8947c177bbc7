"""`genai-server deploy ray`, apart from what needs a cluster."""

import socket

import pytest
import yaml

from genai_server.cli import main
from genai_server.ray_serve.deploy_command import _drain
from tests.running_server import DEMO


@pytest.mark.usefixtures("ray_serve")
def test_printed_configuration_has_no_defaults_and_no_keys(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GENAI_API_KEYS", "me:sk-0123456789abcdef")
    options = ["--replicas", "1:4", "--print-config", "--max-length", "4096", "--exact", "--port", "8000"]
    assert main(["deploy", "ray", *options]) == 0
    config = yaml.safe_load(capsys.readouterr().out)
    assert config["http_options"] == {"host": "127.0.0.1", "port": 8000}
    (application,) = config["applications"]
    assert application["args"] == {"replicas": "1:4", "max_length": 4096, "exact": True}
    assert main(["deploy", "ray", "--print-config", "--port", "1", "--tls-cert", "both.pem"]) == 0
    config = yaml.safe_load(capsys.readouterr().out)
    files = {"ssl_certfile": "both.pem", "ssl_keyfile": "both.pem"}
    assert config["http_options"] == {"host": "127.0.0.1", "port": 1} | files
    assert config["applications"][0]["args"] == {"replicas": "1"}


@pytest.mark.usefixtures("ray_serve")
def test_configuration_with_invalid_replicas_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deploy", "ray", "--replicas", "4:1", "--print-config"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "replicas=4:1: expected a number such as 2" in printed.err


def test_deploy_without_ray_names_the_package_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("genai_server.ray_serve.deploy_command.importlib.util.find_spec", lambda name: None)
    assert main(["deploy", "ray"]) == 2
    assert capsys.readouterr().err.startswith("genai-server: Ray is not installed; install it: ")


@pytest.mark.usefixtures("ray_serve")
def test_a_port_in_use_is_refused_before_a_cluster_starts(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["deploy", "ray", "--model-dir", str(DEMO), "--port", str(port)]) == 2
    assert f"--port={port}: in use on " in capsys.readouterr().err


@pytest.mark.usefixtures("ray_serve")
def test_missing_cluster_is_named_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    assert main(["deploy", "ray", "--model-dir", str(DEMO), "--address", address]) == 2
    assert f"--address {address}: no Ray cluster answers there: " in capsys.readouterr().err
    assert main(["deploy", "ray", "--model-dir", str(DEMO), "--address", "nonsense"]) == 2
    assert "--address nonsense: " in capsys.readouterr().err


def test_a_drain_may_take_longer_than_serve_waits_for_it() -> None:
    ends = [TimeoutError(), TimeoutError(), None]

    def delete(name: str) -> None:
        if (error := ends.pop(0)) is not None:
            raise error

    _drain(delete)
    assert ends == []
