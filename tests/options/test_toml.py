"""Written text is read back equally by TOML's parser."""

import tomllib

import pytest

from genai_server.tools.import_triton import toml_key, toml_value


@pytest.mark.parametrize(
    "value", ["plain", 'with "quotes"', "back\\slash", "line\nbreak", "ünï", "007", "", 7, -1, "7"]
)
def test_a_value_is_read_as_it_was(value: str | int) -> None:
    assert str(tomllib.loads(f"x = {toml_value(value)}")["x"]) == str(value)


@pytest.mark.parametrize("name", ["plain", "with-dash", "session.intra_op.allow_spinning", "two words"])
def test_a_key_is_one_name(name: str) -> None:
    assert tomllib.loads(f"{toml_key(name)} = 1") == {name: 1}
