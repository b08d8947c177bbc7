"""The tree of errors and their codes."""

from genai_server import errors
from genai_server.errors import ALL_ERRORS, GenaiServerError


def test_all_errors_holds_each_error_of_the_module_once() -> None:
    defined = [
        value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, GenaiServerError)
    ]
    assert sorted(ALL_ERRORS, key=str) == sorted(defined, key=str)


def test_each_error_has_a_code_of_its_own() -> None:
    codes = [error.code for error in ALL_ERRORS]
    assert len(set(codes)) == len(codes)


def test_quoted_client_text_can_be_encoded() -> None:
    error = errors.UnknownField("a\ud800 is no field, ü is", param="a\ud800")
    assert (error.message, error.param) == (r"a\ud800 is no field, ü is", r"a\ud800")
    assert str(error) == error.message
