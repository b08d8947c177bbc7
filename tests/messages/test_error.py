"""An error that crosses a process border is equal on the other side."""

import pytest

from genai_server.errors import ALL_ERRORS, GenaiServerError
from genai_server.messages.error import ErrorInfo


@pytest.mark.parametrize("error", ALL_ERRORS, ids=lambda error: error.code)
def test_an_error_comes_back_as_it_was(error: type[GenaiServerError]) -> None:
    found = ErrorInfo.from_error(error("why", param="field", retry_after=7)).to_error()
    assert type(found) is error
    assert (found.message, found.param, found.retry_after, str(found)) == ("why", "field", 7, "why")


def test_an_unknown_code_gives_the_base_error_with_the_message() -> None:
    found = ErrorInfo("of_a_newer_version", "why").to_error()
    assert type(found) is GenaiServerError
    assert (found.message, found.param) == ("why", None)
