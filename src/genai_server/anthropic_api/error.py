"""Anthropic's form of an error (https://docs.anthropic.com/en/api/errors)."""

from genai_server.openai_api.schemas.base import JsonObject

_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def error_object(status: int, message: str, code: str, request_id: str) -> JsonObject:
    """The body of an error, or the data of the event that ends a stream; `status` is the one of HTTP."""
    kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
    error = {"type": kind, "message": message, "details": {"error_code": code}}
    return {"type": "error", "error": error, "request_id": request_id}
