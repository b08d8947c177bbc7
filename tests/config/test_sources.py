"""The sources of a setting's value, its name in errors, and what engines receive."""

import argparse
import re
from pathlib import Path

import pytest

from genai_server.config.sources import (
    add_options,
    engine_spec,
    in_typed_names,
    load_settings,
    unknown_variables,
    unserved_tables,
)
from genai_server.errors import ConfigurationError
from tests.given_settings import given
from tests.running_server import ROOT


@pytest.fixture
def dotenv(tmp_path: Path) -> Path:
    path = tmp_path / ".env"
    path.write_text("PORT=1\nGENAI_MODEL_NAME=from-file\nGENAI_THREADS=3\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("options", "environ", "expected"),
    [
        ({"port": "3"}, {"PORT": "2", "GENAI_MODEL_NAME": "from-environment"}, (3, "from-environment", 3, 16)),
        # An empty value counts as not given, and zero as given.
        ({"port": "", "threads": None}, {"PORT": "", "GENAI_THREADS": ""}, (1, "from-file", 3, 16)),
        ({"port": "0"}, {}, (0, "from-file", 3, 16)),
    ],
)
def test_command_line_overrides_environment_file_and_defaults(
    dotenv: Path, options: dict[str, str | None], environ: dict[str, str], expected: tuple[object, ...]
) -> None:
    found = load_settings(options, environ=environ, dotenv=dotenv)
    assert (found.port, found.model_name, found.threads, found.max_batch_size) == expected


def test_a_removed_value_is_refused_with_those_to_set_instead() -> None:
    with pytest.raises(ConfigurationError, match=r'^GENAI_SCHEDULER="library": it was removed.* auto .* generator '):
        load_settings(environ={"GENAI_SCHEDULER": "library"}, dotenv=None)


def test_the_variables_of_this_server_precede_those_that_other_programs_set(dotenv: Path) -> None:
    """Conda exports HOST with the name of a platform."""
    environ = {"HOST": "x86_64-conda-linux-gnu", "GENAI_HOST": "127.0.0.1", "PORT": "2"}
    settings = load_settings(environ=environ, dotenv=dotenv)
    assert (settings.host, settings.port) == ("127.0.0.1", 2)
    dotenv.write_text("GENAI_PORT=4\n", encoding="utf-8")
    assert load_settings(environ=environ, dotenv=dotenv).port == 4
    assert load_settings({"port": "5"}, environ=environ, dotenv=dotenv).port == 5
    with pytest.raises(ConfigurationError, match="^GENAI_PORT="):
        load_settings(environ={"GENAI_PORT": "x"}, dotenv=None)
    assert unknown_variables({"GENAI_HOST": "x", "GENAI_PORT": "1"}, dotenv=None) == {}


@pytest.mark.parametrize(
    ("text", "size"), [("4GiB", 4 << 30), ("1.5 MiB", 3 << 19), ("2gb", 2_000_000_000), ("500 KB", 500_000), ("7", 7)]
)
def test_sizes_may_have_units(text: str, size: int) -> None:
    settings = load_settings({"prefix_cache_bytes": text, "max_body_bytes": text}, environ={}, dotenv=None)
    assert (settings.prefix_cache_bytes, settings.max_body_bytes) == (str(size), size)


@pytest.mark.parametrize("text", ["4 apples", "GiB", "-4GiB", "4GiBs"])
def test_a_size_in_another_form_is_refused_as_it_was_written(text: str) -> None:
    with pytest.raises(ConfigurationError, match=f'^--max-body-bytes="{text}": must be '):
        load_settings({"max_body_bytes": text}, environ={}, dotenv=None)


def test_other_variables_and_options_and_a_missing_file_are_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {"PATH": "/bin", "port": "1", "GENAI_UNHEARD_OF": "1"}
    assert load_settings({"run": "serve"}, environ=environ, dotenv=tmp_path / ".env") == given()
    monkeypatch.setenv("GENAI_MAX_QUEUE", "17")
    assert load_settings(dotenv=None).max_queue == 17  # this process has an environment


def test_unknown_variables_are_reported_with_the_likely_name(dotenv: Path) -> None:
    dotenv.write_text("GENAI_UNHEARD_OF=1\nGENAI_THREADS=3\n", encoding="utf-8")
    environ = {"PATH": "/bin", "GENAI_API_KEY": "x", "GENAI_EXTRA": "cpu", "GENAI_DEVICE": ""}
    in_file = f"GENAI_UNHEARD_OF in {dotenv}"
    assert unknown_variables(environ, dotenv=dotenv) == {"GENAI_API_KEY": "GENAI_API_KEYS", in_file: None}
    assert unknown_variables({}, dotenv=None) == {}


def test_former_names_are_read_without_the_present_ones_and_not_listed_by_help(tmp_path: Path) -> None:
    file = tmp_path / "genai-server.toml"
    file.write_text("max_image_tokens = 7\n", encoding="utf-8")
    environ = {"GENAI_MAX_IMAGES": "3", "GENAI_MEDIA_TIMEOUT": "4", "GENAI_IMAGE_TIMEOUT": "5"}
    options = {"config": str(file), "max_image_bytes": "6"}
    found = load_settings(options, environ=environ, dotenv=None)
    assert (found.max_media, found.media_timeout, found.max_media_bytes, found.max_media_tokens) == (3, 4, 6, 7)
    assert unknown_variables(environ, dotenv=None) == {}
    typed = load_settings({"max_images": "8"}, environ={"GENAI_MAX_MEDIA": "9"}, dotenv=None)
    assert typed.max_media == 8  # a command line comes before the environment, whatever the name
    with pytest.raises(ConfigurationError, match=r'^GENAI_MAX_IMAGES="0": '):
        load_settings(environ={"GENAI_MAX_IMAGES": "0"}, dotenv=None)
    parser = argparse.ArgumentParser()
    add_options(parser)
    assert parser.parse_args(["--max-images", "3"]).max_images == "3"
    assert "--max-images" not in parser.format_help()


def test_options_of_models_that_are_not_served_are_reported() -> None:
    options = "[models.onnx-genai.session]\nintra_op_num_threads = '1'\n[models.demo.session]\n"
    assert unserved_tables(given(options=options)) == ["onnx-genai"]


def test_the_error_names_the_key_as_it_was_written(dotenv: Path) -> None:
    with pytest.raises(ConfigurationError, match=r'^GENAI_THREADS="many": '):
        load_settings(environ={"GENAI_THREADS": "many"}, dotenv=dotenv)
    dotenv.write_text("GENAI_THREADS=lots\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r'^GENAI_THREADS="lots" in .*\.env: '):
        load_settings(environ={}, dotenv=dotenv)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("port", "80000", "must be at most 65535"),
        ("port", "many", "must be an integer"),
        ("max_length", "0", "must be greater than 0, or auto"),
        ("itl_target", "soon", "must be a number"),
        ("strict", "maybe", "must be true or false"),
        ("log_level", "verbose", "must be debug, info, warning or error"),
        ("log_level", "warn", "must be debug, info, warning or error; did you mean warning?"),
        ("metrics_prefix", "a b", "must have letters, digits and underscores, and end with a colon, such as vllm:"),
        ("kv_events", "here", "must be a ZeroMQ address, such as tcp://*:5557"),
        ("kv_events_topic", "x" * 513, "must have at most 512 characters"),
        ("model_name", "a b", "must begin with a letter or digit, and have at most 128 letters"),
        ("forwarded_allow_ips", "x", '"x" is not an address or a network, such as 10.0.0.0/8'),
    ],
)
def test_wrong_value_is_explained_in_the_servers_own_words(name: str, value: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=f": {re.escape(reason)}"):
        load_settings({name: value}, environ={}, dotenv=None)


def test_installed_copy_serves_its_bundled_model_and_a_clone_its_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_settings(environ={}, dotenv=None).model_dir == str(ROOT / "models" / "demo")
    bundled = tmp_path / "demo_model"
    monkeypatch.setattr("genai_server.config.sources.BUNDLED_MODEL", bundled)
    monkeypatch.chdir(tmp_path)
    assert load_settings(environ={}, dotenv=None).model_dir == "./models/demo"
    bundled.mkdir()
    assert load_settings(environ={}, dotenv=None).model_dir == str(bundled)
    assert load_settings({"model_dir": "other"}, environ={}, dotenv=None).model_dir == "other"
    (tmp_path / "models" / "demo").mkdir(parents=True)
    assert load_settings(environ={}, dotenv=None).model_dir == "./models/demo"


def test_an_engine_gets_each_setting_by_its_name() -> None:
    settings = load_settings({}, environ={"GENAI_MAX_QUEUE": "7", "GENAI_LOG_FORMAT": "json"}, dotenv=None)
    found = engine_spec(settings, "cuda", "model")
    names = [name for name in found.__struct_fields__ if found.is_setting(name)]
    for name in set(names) - {"cache_dir", "prefix_cache_dir", "profile_dir", "max_length"}:
        assert getattr(found, name) == getattr(settings, name)
    assert (names[0], names[-1], found.device, found.model_dir) == ("threads", "telemetry", "cuda", "model")
    assert (found.max_queue, found.log_format) == (7, "json")


def test_folder_settings_are_paths_and_none_disables_the_cache() -> None:
    environ = {"GENAI_CACHE_DIR": "none", "GENAI_PROFILE_DIR": "/tmp/profiles"}
    found = engine_spec(load_settings({}, environ=environ, dotenv=None), "cpu", "")
    assert (found.cache_dir, found.profile_dir) == ("", str(Path("/tmp/profiles")))
    settings = load_settings({}, environ={}, dotenv=None)
    found = engine_spec(settings, "cpu", "")
    assert found.cache_dir == str(settings.cache_path)
    assert found.prefix_cache_dir == f"{settings.cache_path}/prefixes"


def test_messages_name_settings_as_they_were_typed() -> None:
    message = "GENAI_MODEL_DIR=x: too large; PORT=1, GENAI_MAX_LENGTH"
    assert in_typed_names(message, {"max_length": None}) == message
    assert in_typed_names(message, {"max_length": "9", "port": "1"}) == (
        "GENAI_MODEL_DIR=x: too large; --port=1, --max-length"
    )
    assert in_typed_names(message, {"model": "x"}).startswith("MODEL=x: ")
    assert in_typed_names(message, {"model": None, "model_dir": "x"}).startswith("--model-dir=x: ")
