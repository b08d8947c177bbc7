"""The application on Ray Serve, before it is deployed."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from genai_server.config.settings import Settings
from genai_server.errors import ConfigurationError
from genai_server.model_files.pooling_model import Task
from tests.given_settings import given
from tests.running_server import DEMO, ROOT

FOLDER = ROOT / "deploy" / "ray"
DEMO_EMBEDDINGS, DEMO_RERANKER = (ROOT / "models" / name for name in ("demo-embeddings", "demo-reranker"))


@pytest.fixture(scope="module")
def application(ray_serve: Any) -> Any:
    """The module."""
    return import_module("genai_server.ray_serve.application")


def _settings() -> Settings:
    return given(
        models=f"small={DEMO},big=/srv/big",
        model_aliases="gpt=big,s=small",
        adapters="law=/a/law.onnx_adapter,big:tax=/a/tax.onnx_adapter",
        chat_template="chatml,big=llama3",
    )


def test_replicas_have_the_settings_of_a_single_model_server_without_limits_of_keys(application: Any) -> None:
    found = application.settings_of(_settings(), "big")
    assert found.served == {"big": "/srv/big"}
    assert found.aliases == {"gpt": "big"}
    assert found.adapter_files("big") == {"tax": "/a/tax.onnx_adapter"}
    assert found.chat_template_of("big") == "llama3"
    assert application.settings_of(_settings(), "small").adapter_files("small") == {"law": "/a/law.onnx_adapter"}
    assert not found.on_loopback
    settings = _settings().model_copy(update={"max_concurrent_per_key": 1, "rate_per_key": 1})
    found = application.settings_of(settings, "big")
    assert (found.max_concurrent_per_key, found.rate_per_key) == (0, 0)


def test_the_ingress_knows_what_each_model_is_for(application: Any) -> None:
    settings = given(models=f"chat={DEMO},vectors={DEMO_EMBEDDINGS},ranks={DEMO_RERANKER},lost=/srv/none")
    tasks = {"chat": Task.GENERATE, "vectors": Task.EMBED, "ranks": Task.RERANK, "lost": Task.GENERATE}
    assert application.tasks_of(settings) == tasks


def test_folders_are_absolute_where_replicas_work_in_others(application: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    found = application.settings_of(given(), "demo")
    assert found.served == {"demo": str(DEMO)}


def test_version_of_a_deployment_changes_with_keys_and_not_with_the_port(application: Any, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    settings = given(api_key_file=str(keys))
    versions = []
    for text in ("me:sk-0123456789abcdef", "me:sk-0123456789abcdef", "me:sk-fedcba9876543210"):
        keys.write_text(text, encoding="utf-8")
        versions.append(application._version(settings))
    assert versions[0] == versions[1] != versions[2]
    first, second = (given(port=port) for port in ("8002", "8003"))
    assert application._version(first) == application._version(second)


def test_unknown_arguments_and_files_are_refused(application: Any) -> None:
    with pytest.raises(ConfigurationError, match="max_lenght: not a setting"):
        application.build({"max_lenght": 1})
    with pytest.raises(ConfigurationError, match="GENAI_FILES_DIR=/srv/files: files and batches need one server"):
        application.application(given(files_dir="/srv/files"), "1")


def test_example_and_manifest_are_one_valid_configuration(application: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    example = yaml.safe_load((FOLDER / "serve-config.yaml").read_text(encoding="utf-8"))
    service = yaml.safe_load((FOLDER / "rayservice.yaml").read_text(encoding="utf-8"))
    assert yaml.safe_load(service["spec"]["serveConfigV2"]) == example
    (deployed,) = example["applications"]
    module, _, name = deployed["import_path"].partition(":")
    assert (module, name) == (application.__name__, application.build.__name__)
    assert application.build(deployed["args"]) is not None


@pytest.mark.parametrize("replicas", ["0", "x", "2:1", "1:", "-1", "1:2:3", "12345"])
def test_a_wrong_number_of_replicas_is_refused(application: Any, replicas: str) -> None:
    with pytest.raises(ConfigurationError, match=f"replicas={replicas}: expected a number"):
        application.max_replicas(replicas)
    assert (application.max_replicas("3"), application.max_replicas("1:4")) == (3, 4)


def test_two_numbers_scale_by_running_requests(application: Any) -> None:
    assert application.scaling("2", 8) == {"num_replicas": 2}
    bounds = {"min_replicas": 1, "max_replicas": 4}
    assert application.scaling("1:4", 8) == {"autoscaling_config": {**bounds, "target_ongoing_requests": 8}}
