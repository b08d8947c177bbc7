"""Valid bodies of the POST endpoints, for mutations to begin with; answers are short and follow the scripts."""

from __future__ import annotations

from typing import Any

MODEL = "onnx-genai"
# Placeholders for what the server stores, as long as the identifiers that it assigns: a request keeps its length.
CONVERSATION = "conv_" + "c" * 48
RESPONSE = "resp_" + "d" * 48
ITEM = "msg_" + "e" * 48
_HELLO = [{"role": "user", "content": "say hi"}]
_SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"type": "array", "items": {"type": "integer"}}},
    "required": ["city"],
}
# Followed in part: each of its keywords is relaxed or left out where nothing is strict.
_PARTLY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "format": "path", "not": {"const": "Rome"}},
        "days": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "contains": {"const": 1}},
        "unit": {"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 3}]},
        "place": {"$ref": "#/$defs/place"},
    },
    "if": {"required": ["days"]},
    "then": {"required": ["city"]},
    "else": {"maxProperties": 2},
    "dependentSchemas": {"unit": {"required": ["city"]}},
    "patternProperties": {"^x-": {"type": "string"}},
    "additionalProperties": False,
    "$defs": {"place": {"type": ["object", "null"], "properties": {"place": {"$ref": "#/$defs/place"}}}},
}
_FUNCTION = {"name": "weather", "description": "The weather.", "parameters": _SCHEMA, "strict": True}
_TOOL = {"type": "function", "function": _FUNCTION}
_LOOSE_FUNCTIONS: list[dict[str, Any]] = [
    {"name": "partly", "parameters": _PARTLY},
    {"name": "loose", "parameters": _PARTLY, "strict": False},
    {"name": "anything"},
]
_LOOSE_TOOLS = [{"type": "function", "function": function} for function in _LOOSE_FUNCTIONS]
_LOOSE_FORMAT = {"type": "json_schema", "json_schema": {"name": "p", "schema": _PARTLY, "strict": False}}
_CALLED = [{"role": "user", "content": 'say <tool_call>⏎{"name": "partly", "arguments": {}}⏎</tool_call>'}]
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
    "repeat_last_n": 16,
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
# The number of derivations grows exponentially with the answer's length.
_AMBIGUOUS = 'start: s\ns: s s | "a" | "b" | "c"'
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
    {"messages": _HELLO, "structured_outputs": {"grammar": _AMBIGUOUS}, "max_tokens": 40},
    {"messages": _HELLO, "structured_outputs": {"json": _SCHEMA}, "device": "scripted", "model": MODEL, **_SHORT},
    {"messages": _CALLED, "tools": [*_LOOSE_TOOLS, _TOOL], "max_tokens": 90},
    {"messages": _HELLO, "tools": _LOOSE_TOOLS, "tool_choice": "required", **_SHORT},
    {"messages": _HELLO, "tools": _LOOSE_TOOLS, "response_format": _LOOSE_FORMAT, **_SHORT},
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
# The longest name that fits with a namespace of five letters.
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
    {"input": "say hi", "previous_response_id": RESPONSE, "max_output_tokens": 4},
    # What is left out, or has names of more parts: see apis/responses/leniency.py.
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
    {
        "input": _CALLED,
        "tools": [{"type": "function", **function} for function in _LOOSE_FUNCTIONS],
        "text": {"format": {"type": "json_schema", "name": "p", "schema": _PARTLY, "strict": False}},
        "max_output_tokens": 90,
    },
]
_REFERENCES: list[dict[str, Any]] = [{"type": "item_reference", "id": ITEM}]
_CONVERSED: list[dict[str, Any]] = [
    {"role": "user", "content": "say hi"},
    {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": 'a\n"b"'},
    {"type": "custom_tool_call_output", "call_id": "c2", "output": "done"},
    {"type": "compaction", "encrypted_content": "c2F5IGhp"},
]
_LARK = 'start: "a"+ /[^x]*/ NEWLINE\n%import common.NEWLINE'
_CUSTOM: list[dict[str, Any]] = [
    {"type": "custom", "name": "patch", "description": "Change a file."},
    {"type": "custom", "name": "lark", "format": {"type": "grammar", "syntax": "lark", "definition": _LARK}},
    {"type": "custom", "name": "regex", "format": {"type": "grammar", "syntax": "regex", "definition": '[a-z"]+'}},
]
_RESPONSES += [
    {"input": _CONVERSED, "tools": _CUSTOM, "truncation": "auto", "background": True, "max_output_tokens": 4},
    {"input": "say hi", "background": True, "stream": True, "max_output_tokens": 4},
    {
        "input": "say hi",
        "tools": _CUSTOM,
        "tool_choice": {"type": "custom", "name": "lark"},
        "max_output_tokens": 4,
    },
    {"input": "say hi", "conversation": {"id": "conv_x"}, "max_output_tokens": 4},
    {"input": "say hi", "conversation": CONVERSATION, "max_output_tokens": 4},
    {"input": [*_REFERENCES, {"role": "user", "content": "say hi"}], "max_output_tokens": 4},
    {"input": _REFERENCES * 300, "store": False, "max_output_tokens": 4},
]
_COMPACT: list[dict[str, Any]] = [
    {"model": MODEL, "input": _CONVERSED, "instructions": "Be short.", "prompt_cache_key": "k"},
    {"model": MODEL, "input": "say hi", "previous_response_id": "resp_x"},
    {"model": MODEL, "input": "say hi", "previous_response_id": RESPONSE},
]
_ITEMS: list[dict[str, Any]] = [
    {"items": _CONVERSED},
    {"items": [{"type": "item_reference", "id": "x"}]},
    {"items": _REFERENCES},
]
_CONVERSATIONS: list[dict[str, Any]] = [{"items": _CONVERSED, "metadata": {"a": "b"}}, {"metadata": {"a": "b"}}]
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
    # What is left out: see apis/messages/leniency.py.
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
    {
        "model": MODEL,
        "messages": _CALLED,
        "tools": [{**_ANTHROPIC_TOOL, "name": "partly", "input_schema": _PARTLY}, {**_ANTHROPIC_TOOL, "strict": True}],
        "max_tokens": 90,
    },
]
_OLLAMA_OPTIONS = {
    "num_predict": 4,
    "temperature": 0.7,
    "top_k": 40.0,
    "top_p": 0.9,
    "min_p": 0.1,
    "typical_p": 1.0,
    "repeat_penalty": 1.1,
    "repeat_last_n": 64,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "seed": 7,
    "stop": ["\n", "stop"],
    # What is left out: see apis/ollama/routes.py.
    "num_ctx": 4096,
    "mirostat": 0,
}
_OLLAMA_SHORT = {"options": {"num_predict": 4}}
_OLLAMA_TURNS: list[dict[str, Any]] = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "Weather?", "images": ["AA=="]},
    {
        "role": "assistant",
        "content": "",
        "thinking": "so",
        "tool_calls": [{"function": {"index": 0, "name": "weather", "arguments": {"city": "Oslo"}}}],
    },
    {"role": "tool", "tool_name": "weather", "content": "rain"},
    {"role": "user", "content": "say it rains"},
]
# No keep_alive: the model would be unloaded, and loading it takes longer than any answer may.
_OLLAMA_CHATS: list[dict[str, Any]] = [
    {"model": f"{MODEL}:latest", "messages": _HELLO, **_OLLAMA_SHORT},
    {"messages": _HELLO, "options": _OLLAMA_OPTIONS, "stream": False, "truncate": True},
    {"messages": _OLLAMA_TURNS, "tools": [_TOOL], "stream": False, **_OLLAMA_SHORT},
    {"messages": _HELLO, "format": _SCHEMA, "think": True, **_OLLAMA_SHORT},
    {"messages": _HELLO, "format": "json", "think": "low", "logprobs": True, "top_logprobs": 2, **_OLLAMA_SHORT},
    {"model": MODEL, "messages": []},
]
_OLLAMA_TEXTS: list[dict[str, Any]] = [
    {"model": MODEL, "prompt": "say hi", "system": "Be short.", "images": ["AA=="], **_OLLAMA_SHORT},
    {"prompt": "say hi\x04", "raw": True, "format": _SCHEMA, "logprobs": True, "stream": False, **_OLLAMA_SHORT},
    {"prompt": "say", "suffix": "hi", "template": "", "context": [], **_OLLAMA_SHORT},
    {"prompt": "say hi", "format": "json", "think": False, "options": _OLLAMA_OPTIONS},
]
_TEMPLATE: list[dict[str, Any]] = [
    {"messages": _TURNS, "tools": [_TOOL]},
    {"messages": _HELLO, "chat_template_kwargs": {"a": 1}},
]
_TOKENIZE: list[dict[str, Any]] = [
    {"prompt": "Grüße", "add_special_tokens": True, "with_pieces": True},
    {"content": "say", "add_special": False, "parse_special": True},
    {"model": "vectors", "prompt": "say"},
    *_TEMPLATE,
]
_EMBEDDINGS: list[dict[str, Any]] = [
    {"input": "Grüße 🙂", "encoding_format": "base64", "dimensions": 64, "user": "u"},
    {"input": ["say", "", "x" * 3000], "truncate_prompt_tokens": -1, "priority": 1, "timeout": 5},
    {"model": "vectors", "input": [72, 105], "encoding_format": "float"},
    {"input": [[72, 105], [33]], "truncate_prompt_tokens": 1, "device": "scripted", "prompt_name": "query"},
]
_RERANKS: list[dict[str, Any]] = [
    {"query": "Grüße", "documents": ["a", "", "<|im_end|>"], "top_n": 2, "return_documents": True},
    {"query": "x", "documents": [{"text": "say"}, "x" * 3000], "truncate_prompt_tokens": -1, "max_tokens_per_doc": 9},
    {"query": "x", "documents": ["a"], "instruction": "Find a.", "timeout": 5, "priority": -1},
    {"model": "scores", "query": "x", "documents": ["a", "b"]},
]
_SCORES: list[dict[str, Any]] = [
    {"text_1": "x", "text_2": ["a", "b"], "truncate_prompt_tokens": 20},
    {"text_1": ["x", "y"], "text_2": ["a", "b"]},
]
_BATCHES: list[dict[str, Any]] = [
    {"input_file_id": "file-0", "endpoint": "/v1/chat/completions", "completion_window": "24h", "metadata": {"a": "b"}},
    {
        "input_file_id": "file-0",
        "endpoint": "/v1/embeddings",
        "completion_window": "24h",
        "output_expires_after": {"anchor": "created_at", "seconds": 3600},
    },
]

# By path; one that is not here is asked with an empty object to begin with.
BODIES: dict[str, list[dict[str, Any]]] = {
    "/v1/chat": _CHATS,
    "/v1/chat/stream": _CHATS,
    "/v1/chat/completions": _COMPLETIONS,
    "/v1/completions": _TEXTS,
    "/v1/responses": _RESPONSES,
    "/v1/responses/compact": _COMPACT,
    "/v1/conversations": _CONVERSATIONS,
    "/v1/conversations/{conversation_id}": _CONVERSATIONS,
    "/v1/conversations/{conversation_id}/items": _ITEMS,
    "/v1/batches": _BATCHES,
    "/v1/messages": _MESSAGES,
    "/v1/messages/count_tokens": [{k: v for k, v in body.items() if k in ("model", "messages")} for body in _MESSAGES],
    "/v1/chat/completions/render": _COMPLETIONS,
    "/v1/completions/render": _TEXTS,
    "/api/chat": _OLLAMA_CHATS,
    "/api/generate": _OLLAMA_TEXTS,
    "/api/embed": [{"model": "vectors", "input": ["a", "b"], "truncate": True, "dimensions": 32}, {"input": "a"}],
    "/api/embeddings": [{"model": "vectors", "prompt": "a", "options": {"num_ctx": 9}}],
    "/api/show": [{"model": MODEL, "verbose": True}, {"name": MODEL}],
    "/api/pull": [{"model": "org/name:folder", "stream": False}, {"name": "hf.co/org/name"}],
    "/tokenize": _TOKENIZE,
    "/v1/tokenize": _TOKENIZE,
    "/detokenize": [{"tokens": [72, 105]}],
    "/v1/detokenize": [{"tokens": [72, 105]}],
    "/apply-template": _TEMPLATE,
    "/v1/apply-template": _TEMPLATE,
    "/v1/embeddings": _EMBEDDINGS,
    "/v1/rerank": _RERANKS,
    "/v2/rerank": _RERANKS,
    "/v1/score": _SCORES,
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
