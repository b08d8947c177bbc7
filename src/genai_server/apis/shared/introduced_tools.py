"""Functions that a conversation introduces, because a search has found them or a message has added them.

The text is in the place of the conversation where they were found, not at the beginning of the prompt. So the prompt
stays the same up to there when an agent finds more tools, and its cached prefix stays valid.
"""

import json
from collections.abc import Iterable

from genai_server.http.json_response import JsonObject


def introduction(functions: Iterable[JsonObject]) -> str:
    """The text that introduces functions: their definitions, or only the names of those that have nothing else."""
    lines = (f"<function>{_definition(function)}</function>" for function in functions)
    return "\n".join(["<functions>", *lines, "</functions>"])


def _definition(function: JsonObject) -> str:
    fields = {name: function[name] for name in ("description", "name", "parameters") if name in function}
    return json.dumps(fields, ensure_ascii=False)
