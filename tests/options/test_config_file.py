"""The configuration file: its tables, and their precedence."""

import tomllib
from pathlib import Path

import pytest

from genai_server.config.settings import Settings
from genai_server.config.sources import device_options, load_settings
from genai_server.errors import ConfigurationError
from genai_server.options.config_file import device_options as options_of
from genai_server.options.device import DeviceOptions
from tests.given_settings import given


def options(text: str, device: str = "cpu", model: str = "demo", over: str = "") -> DeviceOptions:
    return options_of([tomllib.loads(text), tomllib.loads(over)], model, [device])[device]


FILE = """
max_length = 512
exact = true
[session]
intra_op_num_threads = 1
session.intra_op.allow_spinning = false
[devices.cpu.session]
intra_op_num_threads = 2
[devices."cpu:1".session]
intra_op_num_threads = 3
[models.other.session]
intra_op_num_threads = 4
[models.other.devices.cpu.session]
intra_op_num_threads = 5
"""


@pytest.mark.parametrize(
    ("device", "model", "threads"), [("cpu", "m", "2"), ("cpu:1", "m", "3"), ("cpu", "other", "5"), ("cuda", "m", "1")]
)
def test_more_specific_section_wins_for_each_key(device: str, model: str, threads: str) -> None:
    found = options(FILE, device, model)
    assert found.session["intra_op_num_threads"] == threads
    assert found.entries == {"session.intra_op.allow_spinning": "0"}


def test_options_of_the_environment_win_over_the_file_and_leave_the_rest(tmp_path: Path) -> None:
    found = options(FILE, over="session = {execution_mode = 1, intra_op_num_threads = 9}", device="cuda")
    assert found.session == {"intra_op_num_threads": "9", "execution_mode": "parallel"}
    assert found.entries == {"session.intra_op.allow_spinning": "0"}
    settings = load(
        tmp_path,
        "[session]\nintra_op_num_threads = 2\nenable_mem_pattern = false",
        GENAI_OPTIONS="session.intra_op_num_threads = 3",
    )
    assert device_options(settings)["cpu"].session == {"intra_op_num_threads": "3", "enable_mem_pattern": "0"}


def test_options_that_no_device_or_table_takes_are_refused() -> None:
    text = "[provider.cuda]\ngpu_mem_limit = 3"
    with pytest.raises(ConfigurationError, match=r"\[provider.cuda\]: none of the devices cpu uses it"):
        options(text)
    both = options_of([tomllib.loads(text)], "m", ["cpu", "cuda"])
    assert both["cpu"].providers == []
    with pytest.raises(ConfigurationError, match=r"sesion: unknown; did you mean session\?"):
        options("[devices.cpu.sesion]\nx = 1")


def load(folder: Path, text: str, **environ: str) -> Settings:
    path = folder / "genai-server.toml"
    path.write_text(text, encoding="utf-8")
    return load_settings({"config": str(path)}, environ=environ, dotenv=folder / ".env")


def test_settings_come_from_the_file_after_all_others(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("GENAI_PREFILL_CHUNK=32\n", encoding="utf-8")
    text = "max_length = 512\nprefill_chunk = 64\nexact = true\nmodel_dir = 'here'"
    settings = load(tmp_path, text, GENAI_MAX_LENGTH="256")
    assert (settings.max_length, settings.prefill_chunk, settings.exact) == (256, 32, True)
    assert settings.model_dir == "here"
    assert settings.port == 8002


def test_the_file_of_this_folder_is_taken_if_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert given().port == 8002
    (tmp_path / "genai-server.toml").write_text("port = 9000", encoding="utf-8")
    assert given().port == 9000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_lenght = 5", r"max_lenght: unknown setting; did you mean max_length\?"),
        ("port = [1]", r"port=\[1\]: expected one value"),
        ('port = "many"', 'port="many" in the configuration file: '),
        ("port = ", "is not TOML"),
        ("config = 'x'", "a file cannot name another"),
    ],
)
def test_a_wrong_file_is_refused_with_the_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load(tmp_path, text)


def test_a_file_that_is_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none.toml: cannot be read: no such file"):
        given(config=str(tmp_path / "none.toml"))


def test_options_that_are_not_toml_or_contradict_settings_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="GENAI_OPTIONS: is not TOML"):
        device_options(given(options="nonsense"))
    with pytest.raises(ConfigurationError, match="GENAI_OPTIONS: port: unknown"):
        device_options(given(options="port = 3"))
    options = "session.intra_op_num_threads = 3"
    with pytest.raises(ConfigurationError, match=r"intra_op_num_threads=3: GENAI_THREADS says 2 for cpu"):
        device_options(given(options=options, threads="2"))
    assert device_options(given(options=options, threads="3"))["cpu"].session == {"intra_op_num_threads": "3"}


def test_a_scripted_device_has_no_options() -> None:
    assert device_options(given(device="scripted")) == {}
