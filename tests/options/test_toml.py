"""Written text is read back equally by TOML's parser."""

import tomllib

import pytest

from genai_server.options.toml import toml_key, toml_value, with_settings


@pytest.mark.parametrize(
    "value", ["plain", 'with "quotes"', "back\\slash", "line\nbreak", "ünï", "007", "", 7, -1, "7"]
)
def test_a_value_is_read_as_it_was(value: str | int) -> None:
    assert str(tomllib.loads(f"x = {toml_value(value)}")["x"]) == str(value)


@pytest.mark.parametrize("name", ["plain", "with-dash", "session.intra_op.allow_spinning", "two words"])
def test_a_key_is_one_name(name: str) -> None:
    assert tomllib.loads(f"{toml_key(name)} = 1") == {name: 1}


def test_settings_are_replaced_or_inserted_at_the_top() -> None:
    text = "# why\nthreads = 1\nport = 3\n\n[session]\nthreads = 9 # not a setting\n"
    found = with_settings(text, {"threads": 2, "max_batch_size": 8})
    assert found == "max_batch_size = 8\n# why\nthreads = 2\nport = 3\n\n[session]\nthreads = 9 # not a setting\n"
    assert with_settings("", {"threads": 2, "port": 1}) == "threads = 2\nport = 1\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", '[session]\n"a.b" = 1\n'),
        ("port = 3\n[run]\nx = 1\n", 'port = 3\n[run]\nx = 1\n[session]\n"a.b" = 1\n'),
        ('[session]\n"a.b" = 0\n[run]\n"a.b" = 0\n', '[session]\n"a.b" = 1\n[run]\n"a.b" = 0\n'),
        ("[session]\nc = 2\n", '[session]\n"a.b" = 1\nc = 2\n'),
    ],
)
def test_keys_of_a_table_are_replaced_or_inserted(text: str, expected: str) -> None:
    assert with_settings(text, {"a.b": "1"}, "session") == expected
