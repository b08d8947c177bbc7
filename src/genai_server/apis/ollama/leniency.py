"""What the lenient Ollama API accepts and removes although this server does not support it.

Like Ollama's own decoder it takes unknown keys at every level, among them options of model loading and memory use.
"""

from typing import Any

from genai_server.http.leniency import objects_at

# A conversation that is too long is an error; it is never truncated.
TRUNCATION_FIELDS = ("truncate", "shift")


def leave_out(body: Any) -> list[str]:
    """Remove what is known and unsupported from a body; returns the locations removed."""
    found = []
    if isinstance(body, dict):
        found += [field for field in TRUNCATION_FIELDS if body.get(field) is True and body.pop(field)]
    for place, message in objects_at(body, "messages[]"):
        role = message.get("role")
        if message.get("tool_calls") and isinstance(role, str) and role.lower() != "assistant":
            del message["tool_calls"]
            found.append(f"{place}.tool_calls")
    return found
