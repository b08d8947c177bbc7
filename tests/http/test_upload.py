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


def test_a_form_without_a_file_says_so() -> None:
    assert not parsed(form(part("model", b"m"))).has_file


def refusal(body: bytes) -> GenaiServerError:
    with pytest.raises(GenaiServerError) as caught:
        parsed(body)
    return caught.value


@pytest.mark.parametrize(
    "body", [b"{}", b"", BODY[:-30], BODY[:60], b"--line\r\n\r\nx\r\n--line--\r\n", b"--line\r\n" + b"a" * 10_000]
)
def test_body_that_is_not_a_form_is_refused(body: bytes) -> None:
    error = refusal(body)
    assert isinstance(error, MalformedForm)
    assert "the body is not a form" in error.message


@pytest.mark.parametrize("kind", ["application/json", "", "multipart/form-data", "text/plain; boundary=a"])
def test_another_type_is_refused_with_the_one_to_send(kind: str) -> None:
    with pytest.raises(MalformedForm, match="must be a form"):
        FormParser({"content-type": kind})
    with pytest.raises(MalformedForm, match="not given|given"):
        FormParser({})


def test_a_boundary_that_is_too_long_is_refused() -> None:
    with pytest.raises(MalformedForm):
        FormParser({"content-type": f"multipart/form-data; boundary={'a' * 5000}"})


def test_a_second_file_is_refused() -> None:
    error = refusal(form(part("file", b"a", file=True), part("file", b"b", file=True)))
    assert isinstance(error, InvalidField)
    assert error.param == "file"


def test_large_fields_are_refused_with_the_limit() -> None:
    error = refusal(form(part("model", b"m"), part("prompt", b"x" * MAX_FIELD_BYTES)))
    assert (error.code, error.param) == ("invalid_value", "prompt")
    assert f"together, {MAX_FIELD_BYTES} bytes" in error.message
    assert parsed(form(part("prompt", b"x" * (MAX_FIELD_BYTES - 6)))).fields


def test_many_fields_are_refused_with_the_limit() -> None:
    error = refusal(form(*(part(f"f{number}", b"1") for number in range(MAX_FIELDS + 1))))
    assert error.param == f"f{MAX_FIELDS}"
    assert error.message.endswith(f"at most {MAX_FIELDS}")


@given(strategies.data())
def test_damaged_forms_are_parsed_or_refused(data: strategies.DataObject) -> None:
    body = bytearray(BODY)
    for _ in range(data.draw(strategies.integers(1, 4))):
        start = data.draw(strategies.integers(0, len(body)))
        body[start : start + data.draw(strategies.integers(0, 40))] = data.draw(strategies.binary(max_size=40))
    with contextlib.suppress(GenaiServerError):
        parsed(bytes(body), data.draw(strategies.integers(1, 500)))


def test_fields_must_be_text() -> None:
    assert refusal(form(part("prompt", b"\xff"))).message == "prompt must be valid UTF-8"
