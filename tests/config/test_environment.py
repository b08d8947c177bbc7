"""The environment of child processes and of libraries that are imported later."""

from collections.abc import Mapping

from genai_server.config import environment
from genai_server.config.settings import Settings
from genai_server.config.sources import load_settings
from tests.given_settings import given


def _from_environment(environ: Mapping[str, str]) -> Settings:
    return load_settings(environ=environ, dotenv=None)


def test_exported_settings_load_as_the_same_and_overrule_the_environment() -> None:
    settings = given(
        host="::1",
        port="0",
        workers="2",
        reload="true",
        model_dir="a folder",
        device="cpu,cuda:1",
        admin_api_key="k=1",
        profile_dir="/tmp/p",
        log_level="debug",
    )
    environ: dict[str, str] = {}
    environment.export_settings(settings, environ)
    assert _from_environment(environ) == settings
    environ = {"GENAI_ADMIN_API_KEY": "old", "PORT": "1"}
    environment.export_settings(given(port="2"), environ)
    settings = _from_environment(environ)
    assert (settings.admin_api_key, settings.port) == (None, 2)


def test_engine_and_builder_processes_inherit_no_keys_of_ours() -> None:
    ours = {"GENAI_API_KEYS": "ann:k", "GENAI_ADMIN_API_KEY": "k", "HF_TOKEN": "t"}
    ours |= {"OTEL_EXPORTER_OTLP_HEADERS": "authorization=k", "PROMETHEUS_MULTIPROC_DIR": "/tmp/m"}
    others = {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "1", "ORT_DISABLE_TELEMETRY": "1"}
    assert environment.engine_environment(ours | others) == others
    assert environment.builder_environment(ours | others) == others | {"HF_HUB_OFFLINE": "1"}


def test_tokenizer_uses_one_thread_unless_the_operator_sets_it() -> None:
    silent: dict[str, str] = {}
    environment.limit_tokenizer_threads(silent)
    assert silent == {"TOKENIZERS_PARALLELISM": "false"}
    willing = {"TOKENIZERS_PARALLELISM": "true"}
    environment.limit_tokenizer_threads(willing)
    assert willing == {"TOKENIZERS_PARALLELISM": "true"}


def test_local_ray_cluster_requires_a_token() -> None:
    environ = {"RAY_AUTH_MODE": "disabled", "RAY_enable_metrics_collection": "1"}
    environment.keep_ray_local(environ)
    assert (environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"], environ["RAY_USAGE_STATS_ENABLED"]) == ("0", "0")
    assert (environ["RAY_AUTH_MODE"], environ["RAY_enable_metrics_collection"]) == ("disabled", "1")
    environment.keep_ray_local(environ := {})
    assert (environ["RAY_AUTH_MODE"], environ["RAY_enable_metrics_collection"]) == ("token", "0")
