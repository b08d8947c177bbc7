"""Errors in the forms of other APIs; Anthropic's as its client parses them."""

import pytest
from anthropic.types import ErrorResponse

from genai_server.http.error_objects import anthropic_error, ollama_error


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (405, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "overloaded_error"),
    ],
)
def test_each_status_has_one_of_anthropics_types(status: int, kind: str) -> None:
    read = ErrorResponse.model_validate(anthropic_error(status, "what", "why", "req-1"))
    assert (read.type, read.error.type, read.error.message, read.request_id) == ("error", kind, "what", "req-1")
    assert read.error.to_dict()["details"] == {"error_code": "why"}


def test_an_error_of_ollama_is_a_text() -> None:
    assert ollama_error("it failed") == {"error": "it failed"}
