"""Writes the definitions of functions into a conversation, where a tool search has found them or a message has added
them.

The definitions are not at the beginning of the prompt. So when an agent finds more tools, the prompt is unchanged up to
that point and its cached prefix stays valid.
"""

import json
from collections.abc import Iterable

from genai_server.http.json_response import JsonObject


def introduction(functions: Iterable[JsonObject]) -> str:
    """A text with the definitions of functions. A function that has only a name is listed by its name."""
    lines = (f"<function>{_definition(function)}</function>" for function in functions)
    return "\n".join(["<functions>", *lines, "</functions>"])


def _definition(function: JsonObject) -> str:
    fields = {name: function[name] for name in ("description", "name", "parameters") if name in function}
    return json.dumps(fields, ensure_ascii=False)
