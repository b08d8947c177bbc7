"""The APIs whose errors have a format other than OpenAI's."""

from genai_server.apis.messages.errors import ANTHROPIC
from genai_server.apis.ollama.errors import OLLAMA

DIALECTS = (ANTHROPIC, OLLAMA)
