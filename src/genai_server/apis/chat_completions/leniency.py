"""What lenient chat completions and text completions accept and remove although this server does not support it."""

from typing import Any

from genai_server.apis.shared.raw_body import remove, remove_values, replace_media

# Values without effect.
VALUES = {"verbosity": ("low", "high")}
# vLLM's choice of grammar library and JSON whitespace, both of which are fixed here.
COMPLETIONS_WITHOUT_EFFECT = (
    "guided_decoding_backend",
    "guided_whitespace_pattern",
    "structured_outputs.whitespace_pattern",
)
MEDIA = {"file": "file", "image_url": "image"}


def leave_out_of_chat(body: Any) -> list[str]:
    """Remove unsupported parts from a body of chat completions; returns the locations removed."""
    found = leave_out_of_completion(body) + remove_values(body, VALUES)
    return found + list(replace_media(body, "messages[].content[]", MEDIA, "text"))


def leave_out_of_completion(body: Any) -> list[str]:
    """Like `leave_out_of_chat`, for a body of text completions."""
    return [place for path in COMPLETIONS_WITHOUT_EFFECT for place in remove(body, path)]
