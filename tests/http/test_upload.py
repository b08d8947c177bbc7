"""Forms, however their bytes are split, and what is no form."""

import contextlib

import pytest
from hypothesis import given, strategies

from genai_server.errors import GenaiServerError, InvalidField, MalformedForm
from genai_server.http.upload import MAX_FIELD_BYTES, MAX_FIELDS, FormParser

TYPE = {"content-type": "multipart/form-data; boundary=line"}


def part(name: str, value: bytes, *, file: bool = False) -> bytes:
    more = '; filename="a.wav"\r\ncontent-type: audio/wav' if file else ""
    return f'--line\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + value + b"\r\n"


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--line--\r\n"


def parsed(body: bytes, step: int = 1_000_000) -> FormParser:
    parser = FormParser(TYPE)
    for start in range(0, len(body), step):
        parser.feed(body[start : start + step])
    parser.finish()
    return parser


SOUND = bytes(range(256)) * 3 + b"\r\n--lin\r\n--"
BODY = form(part("model", b"m"), part("file", SOUND, file=True), part("include[]", "é".encode()), part("prompt", b""))


@pytest.mark.parametrize("step", [1, 2, 7, 100, 10_000])
def test_fields_and_file_arrive_in_any_pieces(step: int) -> None:
    found = parsed(BODY, step)
    assert found.fields == [("model", "m"), ("include[]", "é"), ("prompt", "")]
    assert bytes(found.pending) == SOUND
    assert found.has_file


def test_file_bytes_can_be_taken_while_they_arrive() -> None:
    parser, taken = FormParser(TYPE), b""
    for start in range(0, len(BODY), 50):
        parser.feed(BODY[start : start + 50])
        taken, parser.pending = taken + bytes(parser.pending), bytearray()
    assert taken == SOUND


@pytest.mark.parametrize(
    "body", [b"{}", b"", BODY[:-30], BODY[:60], b"--line\r\n\r\nx\r\n--line--\r\n", b"--line\r\n" + b"a" * 10_000]
)
def test_body_that_is_not_a_form_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedForm, match="the body is not a form"):
        parsed(body)


@pytest.mark.parametrize("kind", ["application/json", "", "multipart/form-data", "text/plain; boundary=a", None])
def test_another_type_is_refused_with_the_one_to_send(kind: str | None) -> None:
    with pytest.raises(MalformedForm, match="must be a form"):
        FormParser({} if kind is None else {"content-type": kind})
    with pytest.raises(MalformedForm):
        FormParser({"content-type": f"multipart/form-data; boundary={'a' * 5000}"})


MANY = [part(f"f{number}", b"1") for number in range(MAX_FIELDS + 1)]


@pytest.mark.parametrize(
    ("parts", "param", "message"),
    [
        ([part("file", b"a", file=True), part("file", b"b", file=True)], "file", "file"),
        ([part("model", b"m"), part("prompt", b"x" * MAX_FIELD_BYTES)], "prompt", f"together, {MAX_FIELD_BYTES} bytes"),
        (MANY, f"f{MAX_FIELDS}", f"at most {MAX_FIELDS}"),
        ([part("prompt", b"\xff")], "prompt", "prompt must be valid UTF-8"),
    ],
    ids=["two files", "large", "many", "bytes"],
)
def test_a_second_file_and_fields_over_the_limits_are_refused(parts: list[bytes], param: str, message: str) -> None:
    with pytest.raises(InvalidField, match=message) as refused:
        parsed(form(*parts))
    assert refused.value.param == param


def test_fields_within_the_limits_need_no_file() -> None:
    assert not parsed(form(part("prompt", b"x" * (MAX_FIELD_BYTES - 6)))).has_file


@given(strategies.data())
def test_damaged_forms_are_parsed_or_refused(data: strategies.DataObject) -> None:
    body = bytearray(BODY)
    for _ in range(data.draw(strategies.integers(1, 4))):
        start = data.draw(strategies.integers(0, len(body)))
        body[start : start + data.draw(strategies.integers(0, 40))] = data.draw(strategies.binary(max_size=40))
    with contextlib.suppress(GenaiServerError):
        parsed(bytes(body), data.draw(strategies.integers(1, 500)))
