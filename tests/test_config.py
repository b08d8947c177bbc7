"""The settings: where a value comes from, what is refused, and how the API processes inherit them."""

import argparse
from collections.abc import Mapping
from pathlib import Path

import pytest
from pydantic import ValidationError

from genai_server import config
from genai_server.config import Settings, load_settings
from genai_server.errors import ConfigurationError


def _load(**options: str | None) -> Settings:
    """Settings from the command line alone."""
    return load_settings(options, environ={}, dotenv=None)


def _from_environment(environ: Mapping[str, str]) -> Settings:
    return load_settings(environ=environ, dotenv=None)


@pytest.fixture
def dotenv(tmp_path: Path) -> Path:
    path = tmp_path / ".env"
    path.write_text("PORT=1\nGENAI_MODEL_NAME=from-file\nGENAI_THREADS=3\n", encoding="utf-8")
    return path


# where a value comes from


def test_command_line_comes_before_environment_before_file_before_default(dotenv: Path) -> None:
    environ = {"PORT": "2", "GENAI_MODEL_NAME": "from-environment"}
    settings = load_settings({"port": "3"}, environ=environ, dotenv=dotenv)
    assert (settings.port, settings.model_name, settings.threads) == (3, "from-environment", 3)
    assert settings.max_batch_size == 16


def test_an_empty_value_counts_as_not_given(dotenv: Path) -> None:
    settings = load_settings({"port": "", "threads": None}, environ={"PORT": "", "GENAI_THREADS": ""}, dotenv=dotenv)
    assert (settings.port, settings.threads) == (1, 3)


def test_zero_on_the_command_line_is_given(dotenv: Path) -> None:
    assert load_settings({"port": "0"}, environ={}, dotenv=dotenv).port == 0


def test_a_missing_file_is_no_error(tmp_path: Path) -> None:
    assert load_settings(environ={}, dotenv=tmp_path / ".env") == _load()


def test_other_variables_and_options_are_nothing_to_the_settings() -> None:
    environ = {"PATH": "/bin", "port": "1", "GENAI_UNHEARD_OF": "1"}
    assert load_settings({"run": "serve"}, environ=environ, dotenv=None) == _load()


def test_the_environment_is_that_of_the_process_unless_another_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENAI_MAX_QUEUE", "17")
    assert load_settings(dotenv=None).max_queue == 17


# what is refused


@pytest.mark.parametrize(
    ("name", "lowest", "highest"),
    [
        ("port", 0, 65535),
        ("workers", 1, 64),
        ("max_length", 1, None),
        ("max_batch_size", 1, 1024),
        ("max_queue", 0, None),
        ("prefill_chunk", 2, None),
        ("threads", 0, 1024),
        ("max_body_bytes", 1, None),
        ("profile_max_files", 1, None),
        ("profile_max_bytes", 1, None),
    ],
)
def test_a_number_is_taken_up_to_its_bounds_and_refused_beyond(name: str, lowest: int, highest: int | None) -> None:
    assert getattr(_load(**{name: str(lowest)}), name) == lowest
    refused = [lowest - 1]
    if highest is not None:
        assert getattr(_load(**{name: str(highest)}), name) == highest
        refused.append(highest + 1)
    for value in refused:
        with pytest.raises(ConfigurationError, match=f"^{config.option(name)}='{value}': "):
            _load(**{name: str(value)})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", "eighty"),
        ("reload", "perhaps"),
        ("log_level", "INFO"),
        ("model_name", "-starts-with-a-dash"),
        ("model_name", "two words"),
        ("model_name", "x" * 129),
        ("device", "CPU"),
        ("device", "cuda:"),
        ("device", "cuda:x"),
        ("device", "cpu,"),
        ("device", "gpu"),
        ("device", "cpu;cuda"),
    ],
)
def test_a_wrong_value_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        _load(**{name: value})
    assert caught.value.message.startswith(f"{config.option(name)}={value!r}: ")


def test_the_error_names_the_key_as_it_was_written(dotenv: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"^GENAI_THREADS='many': "):
        load_settings(environ={"GENAI_THREADS": "many"}, dotenv=dotenv)
    dotenv.write_text("GENAI_THREADS=lots\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"^GENAI_THREADS in .*\.env='lots': "):
        load_settings(environ={}, dotenv=dotenv)


def test_an_unknown_device_is_told_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match="unknown device 'tpu'; known are cpu, cuda, tensorrt"):
        _load(device="cpu,tpu")


def test_a_repeated_device_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="twice"):
        _load(device="cpu, cpu")


def test_a_setting_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValidationError, match="max_lenght"):
        Settings.model_validate({"max_lenght": 5})


# what follows from them


def test_devices_keep_their_order_and_lose_their_blanks() -> None:
    settings = _load(device=" cuda:1 , cpu,cuda:0")
    assert settings.devices == ["cuda:1", "cpu", "cuda:0"]
    assert settings.device == "cuda:1,cpu,cuda:0"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_a_loopback_address_is_reachable_from_this_machine_only(host: str) -> None:
    assert _load(host=host).on_loopback


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "10.0.0.1", "localhost.example.com", "127.example.com", "1127.0.0.1"]
)
def test_any_other_address_is_not_taken_for_loopback(host: str) -> None:
    assert not _load(host=host).on_loopback


def test_the_admin_key_is_not_shown_with_the_settings() -> None:
    settings = _load(admin_api_key="s3cret")
    assert settings.admin_api_key == "s3cret"
    assert "s3cret" not in repr(settings) + str(settings)


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        _load().port = 1


# the command line


def _parse(*arguments: str) -> dict[str, str | None]:
    parser = argparse.ArgumentParser()
    config.add_options(parser)
    return vars(parser.parse_args(arguments))


def test_every_setting_has_an_option_which_is_absent_unless_given() -> None:
    assert _parse() == dict.fromkeys(Settings.model_fields)


def test_an_option_is_named_after_its_setting() -> None:
    assert _load(**_parse("--max-length", "77", "--model-dir", "x")).max_length == 77


@pytest.mark.parametrize(
    ("arguments", "reload"),
    [(["--reload"], True), (["--reload", "true"], True), (["--reload", "false"], False), ([], False)],
)
def test_a_switch_may_stand_alone_or_with_a_value(arguments: list[str], reload: bool) -> None:
    assert _load(**_parse(*arguments)).reload is reload


def test_the_help_names_variable_and_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _parse("--help")
    shown = " ".join(capsys.readouterr().out.split())
    assert "(GENAI_MAX_BATCH_SIZE, default: 16)" in shown
    for name in Settings.model_fields:
        assert config.option(name) in shown


# what is handed on to other processes


def test_exported_settings_load_as_the_same() -> None:
    settings = _load(
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
    config.export_settings(settings, environ)
    assert _from_environment(environ) == settings


def test_exported_settings_overrule_what_the_environment_said() -> None:
    environ = {"GENAI_ADMIN_API_KEY": "old", "PORT": "1"}
    config.export_settings(_load(port="2"), environ)
    settings = _from_environment(environ)
    assert (settings.admin_api_key, settings.port) == (None, 2)


def test_engines_to_attach_are_those_that_were_exported() -> None:
    environ: dict[str, str] = {}
    assert config.engines_to_attach(environ) is None
    config.export_engines(Path("/tmp/engines"), environ)
    assert config.engines_to_attach(environ) == Path("/tmp/engines")


def test_telemetry_is_off_unless_the_operator_has_said_otherwise() -> None:
    silent: dict[str, str] = {}
    config.disable_telemetry(silent)
    assert silent == {"ORT_DISABLE_TELEMETRY": "1"}
    willing = {"ORT_DISABLE_TELEMETRY": "0"}
    config.disable_telemetry(willing)
    assert willing == {"ORT_DISABLE_TELEMETRY": "0"}


def test_the_tokenizer_keeps_to_one_thread_unless_the_operator_has_said_otherwise() -> None:
    silent: dict[str, str] = {}
    config.limit_tokenizer_threads(silent)
    assert silent == {"TOKENIZERS_PARALLELISM": "false"}
    willing = {"TOKENIZERS_PARALLELISM": "true"}
    config.limit_tokenizer_threads(willing)
    assert willing == {"TOKENIZERS_PARALLELISM": "true"}
