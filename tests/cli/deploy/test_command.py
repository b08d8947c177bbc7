"""`genai-server deploy ray` as far as it needs no cluster."""

import pytest
import yaml

from genai_server.cli import main


def test_the_configuration_has_what_is_not_the_default_and_no_key(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="Ray Serve is not installed (extra ray)")
    monkeypatch.setenv("GENAI_API_KEYS", "me:sk-0123456789abcdef")
    options = ["--replicas", "1:4", "--print-config", "--max-length", "4096", "--exact", "--port", "8000"]
    assert main(["deploy", "ray", *options]) == 0
    config = yaml.safe_load(capsys.readouterr().out)
    assert config["http_options"] == {"host": "127.0.0.1", "port": 8000}
    (application,) = config["applications"]
    assert application["args"] == {"replicas": "1:4", "max_length": 4096, "exact": True}


def test_without_ray_the_command_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("genai_server.cli.deploy.command.importlib.util.find_spec", lambda name: None)
    assert main(["deploy", "ray"]) == 2
    assert capsys.readouterr().err.startswith("genai-server: Ray is not installed; install it: ")
