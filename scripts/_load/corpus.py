"""Valid bodies of the POST endpoints, for mutations to begin with; answers are short and follow the scripts."""

from __future__ import annotations

from typing import Any

MODEL = "onnx-genai"
_HELLO = [{"role": "user", "content": "say hi"}]
_SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"type": "array", "items": {"type": "integer"}}},
    "required": ["city"],
}
_FUNCTION = {"name": "weather", "description": "The weather.", "parameters": _SCHEMA, "strict": True}
_TOOL = {"type": "function", "function": _FUNCTION}
_TURNS = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    {"role": "user", "content": "say it rains"},
]
_SAMPLING = {
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 5,
    "min_p": 0.1,
    "repetition_penalty": 1.1,
    "frequency_penalty": 0.5,
    "presence_penalty": -0.5,
    "logit_bias": {"65": 5.0, "66": -100},
    "seed": 7,
    "stop": ["\n", "stop"],
    "min_tokens": 1,
    "ignore_eos": True,
    "cache_prompt": False,
    "cache_salt": "salt",
    "priority": 3,
    "exact": True,
}
_SHORT = {"max_tokens": 4}
_CHATS: list[dict[str, Any]] = [
    {"messages": _HELLO, **_SHORT},
    {"messages": _TURNS, "tools": [_TOOL], "tool_choice": "auto", **_SHORT},
    {"messages": _HELLO, **_SAMPLING, "logprobs": True, "top_logprobs": 3, **_SHORT},
    {
        "messages": _HELLO,
        "tools": [_TOOL],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        **_SHORT,
    },
    {"messages": _HELLO, "tools": [_TOOL], "tool_choice": "required", "parallel_tool_calls": False, **_SHORT},
    {
        "messages": _HELLO,
        "response_format": {"type": "json_schema", "json_schema": {"name": "w", "schema": _SCHEMA}},
        **_SHORT,
    },
    {"messages": _HELLO, "response_format": {"type": "json_object"}, "chat_template_kwargs": {}, **_SHORT},
    {"messages": _HELLO, "structured_outputs": {"regex": "[a-c]{1,3}|\\d+"}, **_SHORT},
    {"messages": _HELLO, "structured_outputs": {"choice": ["yes", "no"]}, "reasoning_effort": "low", **_SHORT},
    {"messages": _HELLO, "structured_outputs": {"grammar": 'start: "a" b\nb: /[0-9]+/ | "(" b ")"'}, **_SHORT},
    {"messages": _HELLO, "structured_outputs": {"json": _SCHEMA}, "device": "scripted", "model": MODEL, **_SHORT},
]
_COMPLETIONS = [
    *({**body, "n": 2} for body in _CHATS[:3]),
    *({**body, "stream": True, "stream_options": {"include_usage": True}} for body in _CHATS[3:]),
    {"messages": _HELLO, "max_completion_tokens": 4, "user": "x", "metadata": {"a": "b"}, "store": False},
]
_TEXTS = [
    {"prompt": "say hi\x04", **_SHORT},
    {"prompt": ["say hi\x04", "say ho\x04"], "n": 2, "echo": True, "logprobs": 2, **_SHORT},
    {
        "prompt": [115, 97, 121, 32, 104, 105, 4],
        "stream": True,
        "max_tokens": 3,
        **{k: _SAMPLING[k] for k in ("seed", "stop")},
    },
    {"prompt": [[72, 4], [73, 4]], "structured_outputs": {"regex": "[a-z]+"}, **_SHORT},
]
# The longest that fits beside a namespace of five letters.
_LONG_NAME = "n" * 121
_IMAGE = "data:image/png;base64,AA=="
_NAMESPACE = {
    "type": "namespace",
    "name": "north",
    "description": "Of the north.",
    "tools": [{"type": "function", **_FUNCTION}, {"type": "function", **_FUNCTION, "name": _LONG_NAME}],
}
_RESPONSES: list[dict[str, Any]] = [
    {"input": "say hi", "max_output_tokens": 4},
    {"input": _HELLO, "instructions": "Be short.", "stream": True, "store": False, "max_output_tokens": 4},
    {
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Oslo"}'},
            {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        ],
        "tools": [{"type": "function", **_FUNCTION}],
        "tool_choice": "required",
        "max_output_tokens": 4,
        "metadata": {"a": "b"},
    },
    {
        "input": "say {}",
        "text": {"format": {"type": "json_schema", "name": "w", "schema": _SCHEMA}},
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
        "reasoning": {"effort": "low"},
        "max_output_tokens": 4,
    },
    {"input": "say hi", "previous_response_id": "resp_x", "max_output_tokens": 4},
    # What is left out, or has names of more parts: see openai_api/lenient.py.
    {
        "input": "say hi",
        "tools": [_NAMESPACE, {"type": "web_search"}, {"type": "function", **_FUNCTION, "defer_loading": True}],
        "tool_choice": {"type": "function", "name": "weather", "namespace": "north"},
        "text": {"verbosity": "low"},
        "client_metadata": {"a": "b"},
        "max_output_tokens": 4,
    },
    {
        "input": [
            {"role": "user", "content": [{"type": "input_image", "image_url": _IMAGE}]},
            {"type": "function_call", "call_id": "c1", "name": "weather", "namespace": "north", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_file", "file_id": "f"}]},
        ],
        "tools": [_NAMESPACE, {"type": "namespace", "name": "empty", "tools": []}],
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": _LONG_NAME}]},
        "reasoning": {"effort": "high", "summary": "detailed"},
        "max_output_tokens": 4,
    },
]
_ANTHROPIC_IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}


def _document(source: dict[str, Any]) -> dict[str, Any]:
    return {"type": "document", "source": source, "title": "A title", "citations": {"enabled": True}}


_ANTHROPIC_TURNS: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "rain"}]},
]
_ANTHROPIC_TOOL = {"name": "weather", "description": "The weather.", "input_schema": _SCHEMA}
_MESSAGES: list[dict[str, Any]] = [
    {"model": MODEL, "messages": _HELLO, "max_tokens": 4, "temperature": 0.5, "top_k": 3, "stop_sequences": ["x"]},
    {"model": MODEL, "messages": _ANTHROPIC_TURNS, "tools": [_ANTHROPIC_TOOL], "max_tokens": 4, "system": "Be short."},
    {
        "model": MODEL,
        "messages": _HELLO,
        "max_tokens": 4,
        "stream": True,
        "tools": [_ANTHROPIC_TOOL],
        "tool_choice": {"type": "tool", "name": "weather"},
        "metadata": {"user_id": "u"},
    },
    # What is left out: see anthropic_api/lenient.py.
    {
        "model": MODEL,
        "messages": _HELLO,
        "max_tokens": 32_000,
        "context_management": {"edits": []},
        "output_config": {"effort": "high"},
        "tools": [
            {**_ANTHROPIC_TOOL, "name": "n" * 128, "defer_loading": True},
            {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"},
            {"type": "tool_search_tool_bm25", "name": "tool_search_tool_bm25"},
            {"type": "web_search_20250305", "name": "web_search"},
        ],
    },
    {
        "model": MODEL,
        "messages": [
            {"role": "user", "content": [_document({"type": "text", "media_type": "text/plain", "data": "say hi"})]},
            *_ANTHROPIC_TURNS[1:2],
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": [_ANTHROPIC_IMAGE]},
                    _document({"type": "content", "content": [{"type": "text", "text": "say hi"}, _ANTHROPIC_IMAGE]}),
                    _document({"type": "url", "url": "https://example.com/a.pdf"}),
                ],
            },
        ],
        "max_tokens": 4,
        "stream": True,
    },
]
_TEMPLATE: list[dict[str, Any]] = [
    {"messages": _TURNS, "tools": [_TOOL]},
    {"messages": _HELLO, "chat_template_kwargs": {"a": 1}},
]
_TOKENIZE: list[dict[str, Any]] = [
    {"prompt": "Grüße", "add_special_tokens": True, "with_pieces": True},
    {"content": "say", "add_special": False, "parse_special": True},
    *_TEMPLATE,
]

# By path; one that is not here is asked with an empty object to begin with.
BODIES: dict[str, list[dict[str, Any]]] = {
    "/v1/chat": _CHATS,
    "/v1/chat/stream": _CHATS,
    "/v1/chat/completions": _COMPLETIONS,
    "/v1/completions": _TEXTS,
    "/v1/responses": _RESPONSES,
    "/v1/messages": _MESSAGES,
    "/v1/messages/count_tokens": [{k: v for k, v in body.items() if k in ("model", "messages")} for body in _MESSAGES],
    "/v1/chat/completions/render": _COMPLETIONS,
    "/v1/completions/render": _TEXTS,
    "/tokenize": _TOKENIZE,
    "/v1/tokenize": _TOKENIZE,
    "/detokenize": [{"tokens": [72, 105]}],
    "/v1/detokenize": [{"tokens": [72, 105]}],
    "/apply-template": _TEMPLATE,
    "/v1/apply-template": _TEMPLATE,
    "/v1/admin/profiles": [
        {"prefix": "fuzz", "tokens": [2, 4], "max_tokens": 5, "max_seconds": 0.5},
        {"phase": "decode", "slow_token_ratio": 3, "next_tokens": 2, "max_per_hour": 1, "max_seconds": 0.5},
    ],
    "/v1/admin/adapters/load": [{"model": MODEL, "name": "fuzz", "path": "/nowhere"}],
    "/v1/admin/adapters/unload": [{"model": MODEL, "name": "fuzz"}],
    "/v1/admin/runtime_options": [
        {"terminate_session": "0", "enable_profiling": "0"},
        {"terminate_session": "1", "request_id": "nobody", "device": "scripted"},
        {"enable_profiling": "fuzz"},
    ],
}
