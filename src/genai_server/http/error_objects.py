"""Errors in the formats of Anthropic's API (https://docs.anthropic.com/en/api/errors) and of Ollama's
(https://docs.ollama.com/api/errors).
"""

from genai_server.apis.shared.base import JsonObject

_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def anthropic_error(status: int, message: str, code: str, request_id: str) -> JsonObject:
    """The body of an error, or the data of the event that ends a stream. `status` is the HTTP status."""
    kind = _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    error = {"type": kind, "message": message, "details": {"error_code": code}}
    return {"type": "error", "error": error, "request_id": request_id}


def ollama_error(message: str) -> JsonObject:
    """The body of an error, or the line that ends a stream."""
    return {"error": message}
