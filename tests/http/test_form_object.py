"""The fields of a form by their names."""

from pathlib import Path

import pytest

from genai_server.errors import InvalidField
from genai_server.http.upload import Upload, form_object

FILE = Path("a.wav")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ([("include[]", "a"), ("model", "m"), ("include[]", "b")], {"include": ["a", "b"], "model": "m"}),
        ([("language", ""), ("include[]", "")], {}),
        ([("a[anchor]", "created_at"), ("a[seconds]", "3600")], {"a": {"anchor": "created_at", "seconds": "3600"}}),
    ],
    ids=["lists", "empty fields count as absent", "objects"],
)
def test_brackets_make_lists_and_objects(fields: list[tuple[str, str]], expected: dict[str, object]) -> None:
    assert form_object(Upload(fields, FILE)) == {"file": FILE} | expected
    assert form_object(Upload(fields, None)) == expected


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
