"""The formats of errors that the server's APIs have besides OpenAI's."""

from genai_server.apis.messages.errors import ANTHROPIC
from genai_server.apis.ollama.errors import OLLAMA

DIALECTS = (ANTHROPIC, OLLAMA)
