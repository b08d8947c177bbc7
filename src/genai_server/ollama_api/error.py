"""Ollama's form of an error (https://docs.ollama.com/api/errors)."""

from genai_server.openai_api.schemas.base import JsonObject


def error_object(message: str) -> JsonObject:
    """The body of an error, or the line that ends a stream."""
    return {"error": message}
