"""Errors as Anthropic's own client reads them."""

import pytest
from anthropic.types import ErrorResponse

from genai_server.anthropic_api.error import error_object


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
    read = ErrorResponse.model_validate(error_object(status, "what", "why", "req-1"))
    assert (read.type, read.error.type, read.error.message, read.request_id) == ("error", kind, "what", "req-1")
    assert read.error.to_dict()["details"] == {"error_code": "why"}
