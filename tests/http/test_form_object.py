"""The fields of a form by their names."""

from pathlib import Path

import pytest

from genai_server.errors import InvalidField
from genai_server.http.upload import Upload, form_object

FILE = Path("a.wav")


def test_lists_gather_their_values() -> None:
    fields = [("include[]", "a"), ("model", "m"), ("include[]", "b")]
    assert form_object(Upload(fields, FILE)) == {"file": FILE, "include": ["a", "b"], "model": "m"}


def test_empty_fields_count_as_absent() -> None:
    assert form_object(Upload([("language", ""), ("include[]", "")], None)) == {}


def test_brackets_with_a_name_are_members_of_an_object() -> None:
    fields = [("expires_after[anchor]", "created_at"), ("expires_after[seconds]", "3600")]
    assert form_object(Upload(fields, None)) == {"expires_after": {"anchor": "created_at", "seconds": "3600"}}


_TWICE = [("model", "model"), ("a[]", "a"), ("a", "a[]"), ("a[x]", "a[x]"), ("a[x]", "a"), ("a", "a[x]")]


@pytest.mark.parametrize("names", [*_TWICE, ("file", "model")])
def test_a_field_given_twice_is_refused(names: tuple[str, str]) -> None:
    with pytest.raises(InvalidField, match="may be given once") as caught:
        form_object(Upload([(name, "x") for name in names], FILE))
    assert caught.value.param == names[0].partition("[")[0]


@pytest.mark.parametrize("name", ["file", "file[]", "file[", "file[x]"])
def test_a_text_is_no_path_of_a_file(name: str) -> None:
    with pytest.raises(InvalidField, match="with the content of a file") as caught:
        form_object(Upload([(name, "/etc/passwd")], None))
    assert caught.value.param == "file"
