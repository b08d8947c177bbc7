"""Ollama's form of an error."""

from genai_server.ollama_api.error import error_object


def test_an_error_is_a_text() -> None:
    assert error_object("it failed") == {"error": "it failed"}
