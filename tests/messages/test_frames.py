"""An error that crosses a process border is equal on the other side."""

import pytest

from genai_server.errors import ALL_ERRORS, GenaiServerError, InvalidField
from genai_server.messages.frames import ErrorInfo


@pytest.mark.parametrize("error", ALL_ERRORS, ids=lambda error: error.code)
def test_an_error_comes_back_as_it_was(error: type[GenaiServerError]) -> None:
    if issubclass(error, InvalidField):
        given: GenaiServerError = error("field", "must be at most", limit=1, limited_by="A", given=2)
    else:
        given = error("why", param="field", retry_after=7)
    found = ErrorInfo.from_error(given).to_error()
    assert type(found) is error
    assert (found.message, found.param, found.retry_after) == (given.message, "field", given.retry_after)
    assert str(found) == given.message


def test_an_unknown_code_gives_the_base_error_with_the_message() -> None:
    found = ErrorInfo("of_a_newer_version", "why").to_error()
    assert type(found) is GenaiServerError
    assert (found.message, found.param) == ("why", None)
