"""The format of errors of Ollama's API (https://docs.ollama.com/api/errors)."""

import re

from genai_server.http.error_wording import Dialect

# Excludes LM Studio's model lists, whose errors have OpenAI's format.
_PATH = re.compile(r"/api/(?!v[01]/).*", re.DOTALL)

OLLAMA = Dialect(
    lambda scope: _PATH.fullmatch(scope["path"]) is not None,
    lambda error: {"error": error.message},
    words={
        "context_length_exceeded": "the input length exceeds the context length: it has {tokens} tokens, and prompt "
        "and answer together may have {limit} ({limited_by})",
        "model_not_found": "model {name} not found, try pulling it first: {message}",
    },
)
