"""The entry for a model in /v1/models in the format of Anthropic's ModelInfo."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from genai_server.http.json_response import JsonObject
from genai_server.text.codec import TextCodec

_EFFORTS = ("low", "medium", "high", "xhigh", "max")


def anthropic_entry(entry: Mapping[str, Any], codec: TextCodec | None) -> JsonObject:
    """Convert the entry for a model or adapter from OpenAI's format to Anthropic's.

    `codec` has the tokenizer and chat template of a loaded model. Without it, `capabilities` is null.
    """
    length = entry.get("max_model_len")
    return {
        "type": "model",
        "id": entry["id"],
        "display_name": entry["id"],
        "created_at": datetime.fromtimestamp(entry["created"], UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": length,
        "max_tokens": length,
        "capabilities": None if codec is None else _capabilities(entry, codec),
    }


def _capabilities(entry: Mapping[str, Any], codec: TextCodec) -> JsonObject:
    """What the endpoint /v1/messages supports with this model.

    A level of effort is supported if the chat template takes it; requests with another level get the nearest one.
    Thinking of type `enabled` is supported if the template has a variable for it. All models that can chat accept the
    type `disabled`, as Anthropic's definition requires.
    """
    can, chats = entry["capabilities"], entry["chat"]
    variables = codec.writer.thinking
    efforts = variables.efforts if chats else {}
    thinks = chats and "thinking" in can
    is_switched = thinks and bool(efforts or variables.switch_on)
    no = _support(False)
    types = {"adaptive": thinks, "between_tools": False, "disabled": chats, "enabled": is_switched}
    return {
        "batch": no,
        "citations": no,
        "code_execution": no,
        "context_management": no,
        "effort": {**_support(bool(efforts)), **{level: _support(level in efforts) for level in _EFFORTS}},
        "image_input": _support("vision" in can),
        "pdf_input": no,
        "server_tools": {**no, "code_execution": no, "web_search": no},
        "structured_outputs": _support(chats),
        "thinking": {**_support(thinks), "types": {name: _support(is_taken) for name, is_taken in types.items()}},
    }


def _support(supported: bool) -> JsonObject:
    return {"supported": supported}
