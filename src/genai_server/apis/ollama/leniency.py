"""What is removed from requests to the Ollama API because this server does not support it, unless GENAI_STRICT is set.

Like Ollama's own decoder, the API accepts unknown keys at every level, among them options of model loading and memory
use.
"""

from collections.abc import Iterator
from typing import Any

from genai_server.http.leniency import LeftOut, objects_at


def _leave_out_calls_of_others(body: Any) -> Iterator[str]:
    """Remove tool calls from messages that are not the assistant's. Yields the locations."""
    for location, message in objects_at(body, "messages[]"):
        role = message.get("role")
        if message.get("tool_calls") and isinstance(role, str) and role.lower() != "assistant":
            del message["tool_calls"]
            yield f"{location}.tool_calls"


LEFT_OUT = LeftOut(
    # A conversation that is too long is an error; it is never truncated.
    values={"truncate": (True,), "shift": (True,)},
    rules=(_leave_out_calls_of_others,),
)
