"""What single endpoints refuse or leave out, for `tests/apis/test_fields.py`: fields that one API has, or that need
each other.

A row has fields that are added to a small request, the error's code, and the parameter that it names; without a code
the request is answered. In the last table it has the fields and the names of what is left out of them.
"""

from typing import Any

from tests.apis.fields import MESSAGES, MISSING, RAW, TYPE, UNKNOWN, UNSUPPORTED, VALUE

Row = tuple[dict[str, Any], str, str]
TAKEN = ""
TOO_LONG = "context_length_exceeded"

HELLO = MESSAGES[0]
FUNCTION = {"name": "add", "parameters": {"type": "object"}}
TOOL = {"type": "function", "function": FUNCTION}
CUSTOM: dict[str, Any] = {"type": "custom", "custom": {"name": "patch"}}
CALLED = {"name": "add", "arguments": "{}"}
OBJECT = {"type": "json_object"}


def _wrong(**fields: Any) -> list[Row]:
    """Rows of fields that each alone have a wrong value."""
    return [({name: value}, VALUE, name) for name, value in fields.items()]


def _each(name: str, *values: Any) -> list[Row]:
    """Rows of one field with wrong values."""
    return [({name: value}, VALUE, name) for value in values]


def _tools(number: int) -> list[Any]:
    return [{"type": "function", "function": {**FUNCTION, "name": f"f{index}"}} for index in range(number)]


def _custom(syntax: str, definition: str) -> Any:
    form = {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}
    return {"type": "custom", "custom": {"name": "patch", "format": form}}


def _allowed(name: str) -> Any:
    tools = [{"type": "function", "function": {"name": name}}]
    return {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": tools}}


def _asked(content: Any, **message: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content, **message}]}


def _calling(call: Any) -> dict[str, Any]:
    return {"messages": [{"role": "assistant", "tool_calls": [call]}]}


def _part(**part: Any) -> dict[str, Any]:
    return _asked([part])


FIRST = "messages[0]"
PART = f"{FIRST}.content[0]"
# Of messages in OpenAI's form.
CHATS: list[Row] = [
    ({"messages": None}, TYPE, "messages"),
    ({"messages": []}, VALUE, "messages"),
    ({"messages": "Hello"}, TYPE, "messages"),
    ({"messages": ["Hello"]}, TYPE, FIRST),
    ({"messages": [{"content": "x"}]}, MISSING, f"{FIRST}.role"),
    ({"messages": [HELLO, {"role": "robot", "content": "x"}]}, VALUE, "messages[1].role"),
    ({"messages": [HELLO] * 4096}, TOO_LONG, "messages"),
    ({"messages": [HELLO] * 4097}, VALUE, "messages"),
    (_asked(""), TAKEN, ""),
    (_asked([{"type": "text", "text": "say a"}, {"type": "text", "text": "b"}]), TAKEN, ""),
    ({"messages": [{"role": "developer", "content": "say x", "name": "Ann"}]}, TAKEN, ""),
    ({"messages": [{"role": "user"}]}, MISSING, f"{FIRST}.content"),
    (_asked(None), MISSING, f"{FIRST}.content"),
    (_asked(5), TYPE, f"{FIRST}.content"),
    (_asked("a\ud800b"), VALUE, f"{FIRST}.content"),
    (_part(type="image_url", image_url="x"), TYPE, f"{PART}.image_url"),
    (_part(type="image_url", image_url={"url": ""}), VALUE, f"{PART}.image_url.url"),
    (_part(type="image_url", image_url={"url": "x", "detail": "most"}), VALUE, f"{PART}.image_url.detail"),
    (_part(type="input_audio"), MISSING, f"{PART}.input_audio"),
    (_part(type="input_video"), VALUE, PART),
    (_asked("x", tool_call_id="1"), VALUE, f"{FIRST}.tool_call_id"),
    (_asked("x", tool_calls=[]), VALUE, f"{FIRST}.tool_calls"),
    (_asked("x", function_call={"name": "a", "arguments": ""}), VALUE, f"{FIRST}.function_call"),
    ({"messages": [{"role": "tool", "content": "3"}]}, MISSING, f"{FIRST}.tool_call_id"),
    ({"messages": [{"role": "function", "content": "x"}]}, MISSING, f"{FIRST}.name"),
    (_calling({"id": "1", "type": "custom"}), MISSING, f"{FIRST}.tool_calls[0].custom"),
    (_calling({"id": "1", "type": "other", "function": CALLED}), VALUE, f"{FIRST}.tool_calls[0].type"),
    # tools
    ({"tools": _tools(512)}, TAKEN, ""),
    *_wrong(tool_choice="required"),
    *_each("tools", _tools(513), [_custom("lark", "start: (")], [_custom("regex", "(")], [TOOL, TOOL]),
    ({"tools": [{"type": "patch"}]}, VALUE, "tools[0]"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, VALUE, "tools[0].function.name"),
    ({"tools": [{"type": "custom"}]}, MISSING, "tools[0].custom"),
    ({"tools": [{"type": "custom", "custom": {"name": "a b"}}]}, VALUE, "tools[0].custom.name"),
    ({"tools": [{"type": "custom", "custom": {"name": "a", "x": 1}}]}, UNKNOWN, "tools[0].custom.x"),
    ({"tools": [_custom("ebnf", "x")]}, VALUE, "tools[0].custom.format.grammar.syntax"),
    ({"tools": [CUSTOM, {"type": "function", "function": {"name": "patch"}}]}, VALUE, "tools"),
    ({"tools": [TOOL], "tool_choice": "any"}, VALUE, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "custom", "custom": {"name": "patch"}}}, VALUE, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "sub"}}}, VALUE, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": _allowed("fly")}, VALUE, "tool_choice"),
    # fields that need each other, or exclude each other
    ({"max_tokens": 5, "max_completion_tokens": 5}, VALUE, "max_tokens"),
    ({"top_logprobs": 1}, VALUE, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 20}, TAKEN, ""),
    ({"logprobs": True, "top_logprobs": 21}, VALUE, "top_logprobs"),
    ({"stop_token_ids": [65], "include_stop_str_in_output": True}, VALUE, "include_stop_str_in_output"),
    (
        {"ignore_eos": True, "repetition_detection": {"max_pattern_size": 5, "min_count": 3}},
        VALUE,
        "repetition_detection",
    ),
    ({"structured_outputs": {"regex": "a"}, "response_format": OBJECT}, VALUE, "structured_outputs"),
    # thinking
    ({"reasoning": {"effort": "huge"}}, VALUE, "reasoning.effort"),
    ({"reasoning": {"max_tokens": -2}}, VALUE, "reasoning.max_tokens"),
    ({"reasoning": {"exclude": True}}, VALUE, "reasoning.exclude"),
    ({"thinking": {"type": "deep"}}, VALUE, "thinking.type"),
    ({"enable_thinking": "yes"}, TYPE, "enable_thinking"),
    ({"thinking_token_budget": 5, "thinking_budget_tokens": 6}, VALUE, "thinking_budget_tokens"),
    ({"reasoning_effort": "low", "reasoning": {"effort": "high"}}, VALUE, "reasoning.effort"),
    ({"reasoning_effort": "none", "enable_thinking": True}, VALUE, "enable_thinking"),
    ({"reasoning_effort": "low", "thinking": {"type": "disabled"}}, VALUE, "thinking.type"),
    ({"reasoning": {"enabled": True}, "enable_thinking": False}, VALUE, "enable_thinking"),
    # what OpenAI has, and this server has not
    ({"audio": {"voice": "alloy"}}, UNSUPPORTED, "audio"),
    ({"modalities": ["text"], "verbosity": "medium"}, TAKEN, ""),
    ({"modalities": ["audio"]}, VALUE, "modalities[0]"),
    ({"verbosity": "low"}, VALUE, "verbosity"),
    ({"verbosity": "loud"}, VALUE, "verbosity"),
    ({"web_search_options": {}}, UNSUPPORTED, "web_search_options"),
]
FUNCTIONS = [FUNCTION, {"name": "now"}]
CHAT_COMPLETIONS: list[Row] = [
    *CHATS,
    ({"functions": FUNCTIONS, "tools": []}, VALUE, "tools"),
    ({"functions": FUNCTIONS, "tool_choice": "auto"}, VALUE, "tool_choice"),
    ({"functions": FUNCTIONS, "parallel_tool_calls": True}, VALUE, "parallel_tool_calls"),
    *_wrong(function_call="auto", functions=[*FUNCTIONS, FUNCTIONS[0]], guided_regex="("),
    *_wrong(ebnf="root ::= nothing", guided_json={"type": "text"}, guided_choice=[]),
    ({"functions": FUNCTIONS, "function_call": "required"}, VALUE, "function_call"),
    ({"functions": FUNCTIONS, "function_call": {"name": "sub"}}, VALUE, "function_call"),
    ({"stream": True, "stream_options": {"include_usage": "yes"}}, TYPE, "stream_options.include_usage"),
    ({"guided_regex": "a", "regex": "a"}, VALUE, "regex"),
    ({"guided_regex": "a", "structured_outputs": {"regex": "b"}}, VALUE, "guided_regex"),
    ({"regex": "a", "response_format": OBJECT}, VALUE, "regex"),
]
OWN_CHAT: list[Row] = [
    *CHATS,
    ({"functions": []}, UNSUPPORTED, "functions"),
    ({"stream": True}, VALUE, "stream"),
]
COMPLETIONS: list[Row] = [
    *(({"prompt": prompt}, TAKEN, "") for prompt in ("say x", ["say x"], [5, 4], [[5, 4], [4]])),
    *_wrong(suffix="y"),
    *_each("prompt", None, {}, 5, [], "", [300], ["a"] * 129),
    ({"prompt": [[1], []]}, VALUE, "prompt[1]"),
    ({"prompt": [-1]}, VALUE, "prompt[0]"),
    ({"prompt": ["a", 1]}, TYPE, "prompt[1]"),
    ({"prompt": [1, "a"]}, TYPE, "prompt[1]"),
    ({"suffix": "x", "echo": True}, VALUE, "suffix"),
    ({"n": 2, "best_of": 2, "max_tokens": 1}, TAKEN, ""),
    ({"max_tokens": 0, "echo": True}, TAKEN, ""),
    ({"guided_regex": "a", "regex": "a"}, VALUE, "regex"),
]

WEATHER = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}, "strict": True}
PATCH = {"type": "custom", "name": "patch"}
CALL = {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"}
SHELL = {"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}}


def _input(*items: Any) -> dict[str, Any]:
    return {"input": [*items, {"role": "user", "content": "say x"}]}


def _format(**fields: Any) -> dict[str, Any]:
    return {"text": {"format": fields}}


def _patch(**form: Any) -> dict[str, Any]:
    return {"tools": [{**PATCH, "format": form}]}


RESPONSES: list[Row] = [
    *_wrong(tool_choice="required", top_logprobs=1, truncation="never"),
    *_each("input", 5, [], [{"type": "reasoning", "summary": []}]),
    ({"input": ["x"]}, VALUE, "input[0]"),
    ({"input": [{"type": ["message"]}]}, VALUE, "input[0]"),
    ({"input": [{"type": 5}]}, VALUE, "input[0]"),
    ({"input": [{"type": ""}]}, VALUE, "input[0].type"),
    ({"input": [{"type": "additional_tools", "role": "developer", "tools": [WEATHER]}]}, VALUE, "input"),
    ({"input": [{"role": "tool", "content": "x"}]}, VALUE, "input[0].role"),
    ({"input": [{"role": "user"}]}, MISSING, "input[0].content"),
    ({"input": [{"role": "user", "content": None}]}, MISSING, "input[0].content"),
    ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, MISSING, "input[0].content[0].text"),
    ({"input": [{"role": "user", "content": [{"type": "input_video"}]}]}, VALUE, "input[0].content[0]"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, MISSING, "input[0].content[0].image_url"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "file-1"}]}]},
        VALUE,
        "input[0].content[0].file_id",
    ),
    ({"input": [{"id": "msg_1"}]}, VALUE, "input[0].id"),
    (_input({**CALL, "call_id": None}), TYPE, "input[0].call_id"),
    (_input({**CALL, "arguments": None}), TYPE, "input[0].arguments"),
    (_input(CALL, {"type": "function_call_output", "call_id": "c", "output": None}), TYPE, "input[1].output"),
    (_input({**SHELL, "action": {"commands": "ls"}}), TYPE, "input[0].action.commands"),
    (_input(SHELL, {"type": "shell_call_output", "call_id": "c", "output": "x"}), TYPE, "input[1].output"),
    (_input({"type": "local_shell_call_output", "output": "x"}), MISSING, "input[0].call_id"),
    (_input({"type": "x", "id": 5}), TYPE, "input[0].id"),
    (_input({"type": "x", "value": float("nan")}), VALUE, "input[0]"),
    (_input({"type": "x", "value": "\ud800"}), VALUE, "input[0]"),
    (
        _input({"type": "apply_patch_call", "call_id": "1", "operation": {"type": "create_file", "path": "a"}}),
        MISSING,
        "input[0].operation.diff",
    ),
    ({"messages": []}, UNKNOWN, "messages"),
    ({"max_tokens": 5}, UNSUPPORTED, "max_tokens"),
    ({"prompt": {"id": "pmpt_1"}}, UNSUPPORTED, "prompt"),
    ({"context_management": []}, UNSUPPORTED, "context_management"),
    ({"client_metadata": {}}, UNKNOWN, "client_metadata"),
    ({"tools": [{"type": "namespace", "name": "math", "tools": [WEATHER]}]}, VALUE, "tools[0]"),
    ({"tools": [5]}, VALUE, "tools[0]"),
    ({"tools": [{"type": "web_search"}]}, VALUE, "tools[0]"),
    ({"tools": [{"type": "patch", "name": "patch"}]}, VALUE, "tools[0]"),
    ({"tools": [{"type": "tool_search", "execution": "server"}]}, VALUE, "tools[0].execution"),
    (
        {"tools": [{"type": "shell", "environment": {"type": "container_auto"}}]},
        VALUE,
        "tools[0].environment.type",
    ),
    ({"tools": [{**WEATHER, "allowed_callers": ["programmatic"]}]}, VALUE, "tools[0].allowed_callers"),
    ({"tools": [WEATHER, {**WEATHER, "name": "b", "defer_loading": True}]}, VALUE, "tools[1].defer_loading"),
    ({"tools": [{"type": "custom", "name": "a b"}]}, VALUE, "tools[0].name"),
    (_patch(type="grammar", syntax="lark"), MISSING, "tools[0].format.definition"),
    (_patch(type="text", definition="x"), VALUE, "tools[0].format.definition"),
    (_patch(type="grammar", syntax="lark", definition="start: ("), VALUE, "tools"),
    (_patch(type="grammar", syntax="regex", definition="("), VALUE, "tools"),
    ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "sub"}}, VALUE, "tool_choice"),
    (
        {
            "tools": [WEATHER],
            "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "b"}]},
        },
        VALUE,
        "tool_choice",
    ),
    (_format(type="json_schema", name="n"), MISSING, "text.format.schema"),
    (_format(type="json_schema", schema={"type": "object"}), MISSING, "text.format.name"),
    (_format(type="json_schema", name="n", schema={"type": "nonsense"}), VALUE, "text.format.schema"),
    (_format(type="text", name="n"), VALUE, "text.format.name"),
    (_format(type="text", strict=True), VALUE, "text.format.type"),
    ({**_format(type="json_object"), "structured_outputs": {"regex": "a"}}, VALUE, "structured_outputs"),
    ({"text": {"verbosity": "low"}}, VALUE, "text.verbosity"),
    ({"reasoning": {"effort": "huge"}}, VALUE, "reasoning.effort"),
    ({"reasoning": {"summary": "detailed"}}, VALUE, "reasoning.summary"),
    ({"include": ["everything"]}, VALUE, "include[0]"),
    ({"top_logprobs": 0}, TAKEN, ""),
    ({"include": ["message.output_text.logprobs"], "top_logprobs": 21}, VALUE, "top_logprobs"),
    ({"background": 1}, TYPE, "background"),
    ({"background": True, "store": False}, VALUE, "background"),
    ({"conversation": "conv_1"}, "conversation_not_found", "conversation"),
    ({"conversation": "conv_1", "previous_response_id": "resp_1"}, VALUE, "conversation"),
    ({"previous_response_id": "resp_1"}, "previous_response_not_found", "previous_response_id"),
]
MODEL: dict[str, Any] = {"model": "demo"}
COMPACT: list[Row] = [
    ({"input": "x"}, MISSING, "model"),
    (MODEL, MISSING, "input"),
    ({**MODEL, "previous_response_id": "resp_1"}, "previous_response_not_found", "previous_response_id"),
    ({**MODEL, "input": [{"type": "compaction", "encrypted_content": 5}]}, TYPE, "input[0].encrypted_content"),
    ({**MODEL, "input": "x", "tools": []}, UNKNOWN, "tools"),
]
CONVERSATIONS: list[Row] = [
    ({"items": [{"role": "user"}]}, MISSING, "items[0].content"),
    ({"items": [{"type": "item_reference", "id": "x"}]}, VALUE, "items[0].id"),
    ({"metadata": {"a": 1}}, TYPE, "metadata.a"),
    ({"name": "x"}, UNKNOWN, "name"),
]

ADD = {"name": "add", "input_schema": {"type": "object"}}
USE = {"type": "tool_use", "id": "t1", "name": "add", "input": {}}
BASH = {"type": "bash_20250124", "name": "bash"}
EDITOR = {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"}
SCHEMA_FORMAT = {"type": "json_schema", "schema": {"type": "object"}}
PDF = {"type": "base64", "media_type": "application/pdf", "data": "AA=="}
NOTES = {"type": "text", "media_type": "text/plain", "data": "a"}
PNG = {"type": "base64", "media_type": "image/png", "data": "iVBO"}
SOURCE = f"{PART}.source"


def _block(role: str = "user", **block: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": [block]}, HELLO]}


def _image(**source: Any) -> dict[str, Any]:
    return _part(type="image", source=source)


def _document(**fields: Any) -> dict[str, Any]:
    return _part(type="document", **fields)


def _result(*blocks: Any) -> dict[str, Any]:
    return _part(type="tool_result", tool_use_id="t", content=list(blocks))


ANTHROPIC: list[Row] = [
    # A prompt is that of both endpoints.
    ({"messages": []}, VALUE, "messages"),
    ({"messages": [HELLO] * 4097}, VALUE, "messages"),
    ({"messages": [{"role": "tool", "content": "x"}]}, VALUE, f"{FIRST}.role"),
    (_asked([]), VALUE, f"{FIRST}.content"),
    ({"messages": [{**HELLO, "clear_at": "never"}]}, VALUE, f"{FIRST}.clear_at"),
    ({"messages": [HELLO, {"role": "system", "content": "x", "clear_at": "soon"}]}, VALUE, "messages[1].clear_at"),
    ({"thinking": {"type": "sometimes"}}, VALUE, "thinking.type"),
    ({"thinking": {"type": "enabled", "budget_tokens": 0}}, VALUE, "thinking.budget_tokens"),
    ({"thinking": {"type": "adaptive", "display": "all"}}, VALUE, "thinking.display"),
    ({"thinking": {"type": "adaptive", "budget_tokens": 2000}}, VALUE, "thinking.budget_tokens"),
    ({"thinking": {"type": "disabled", "display": "omitted"}}, VALUE, "thinking.display"),
    ({"thinking": {"type": "between_tools", "display": "updates"}}, VALUE, "thinking.display"),
    ({"thinking": {"type": "disabled"}, "output_config": {"effort": "low"}}, VALUE, "output_config.effort"),
    ({"output_config": {"effort": "huge"}}, VALUE, "output_config.effort"),
    ({"output_config": {"format": {"type": "json_schema"}}}, MISSING, "output_config.format.schema"),
    ({"output_format": SCHEMA_FORMAT, "output_config": {"format": SCHEMA_FORMAT}}, VALUE, "output_format"),
    ({"compaction": {"type": "summarize"}}, UNKNOWN, "compaction"),
    ({"nonsense": 1}, UNKNOWN, "nonsense"),
    ({"nonsense": None}, UNKNOWN, "nonsense"),
    ({"context_management": {}}, UNKNOWN, "context_management"),
    ({"mcp_servers": [{}]}, MISSING, "mcp_servers[0].type"),
    # tools
    ({"tools": [{**ADD, "name": f"f{n}"} for n in range(512)]}, TAKEN, ""),
    *_wrong(tool_choice={"type": "any"}),
    *_each("tools", [{**ADD, "name": f"f{n}"} for n in range(513)], [ADD, ADD], [{**BASH, "name": "add"}, ADD]),
    ({"tools": [{**ADD, "name": "a b"}]}, VALUE, "tools[0].name"),
    ({"tools": [{"name": "add"}]}, MISSING, "tools[0].input_schema"),
    ({"tools": [{**ADD, "input_schema": {"x": float("nan")}}]}, VALUE, "tools[0].input_schema"),
    ({"tools": [{**ADD, "input_schema": {"x": "\ud800"}}]}, VALUE, "tools[0].input_schema"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, VALUE, "tools[0].type"),
    ({"tools": [{"type": "bash_20990101", "name": "bash"}]}, VALUE, "tools[0].type"),
    ({"tools": [{**ADD, "type": "bash_20250124"}]}, VALUE, "tools[0].input_schema"),
    ({"tools": [{**BASH, "description": "x"}]}, VALUE, "tools[0].description"),
    ({"tools": [{**BASH, "max_characters": 5}]}, VALUE, "tools[0].max_characters"),
    ({"tools": [{**EDITOR, "max_characters": 0}]}, VALUE, "tools[0].max_characters"),
    ({"tools": [{**ADD, "input_examples": ["x"]}]}, TYPE, "tools[0].input_examples[0]"),
    ({"tools": [{**ADD, "allowed_callers": ["code_execution_20250825"]}]}, VALUE, "tools[0].allowed_callers[0]"),
    ({"tools": [ADD], "tool_choice": {"type": "tool"}}, MISSING, "tool_choice.name"),
    ({"tools": [ADD], "tool_choice": {"type": "auto", "name": "add"}}, VALUE, "tool_choice.name"),
    ({"tools": [ADD], "tool_choice": {"type": "tool", "name": "sub"}}, VALUE, "tool_choice.name"),
    # blocks
    (_image(), VALUE, SOURCE),
    (_image(type="file", file_id="f"), VALUE, SOURCE),
    (_image(type="url"), MISSING, f"{SOURCE}.url"),
    (_image(**{**PNG, "data": ""}), VALUE, f"{SOURCE}.data"),
    (_image(**{**PNG, "media_type": "image/tiff"}), VALUE, f"{SOURCE}.media_type"),
    (_document(source={}), VALUE, SOURCE),
    (_document(source=PDF), VALUE, SOURCE),
    (_document(source={**NOTES, "data": 5}), TYPE, f"{SOURCE}.data"),
    (_document(source=NOTES, title=5), TYPE, f"{PART}.title"),
    (_document(source=NOTES, citations={}), UNSUPPORTED, f"{PART}.citations"),
    (_document(source={"type": "content", "content": [{}]}), VALUE, f"{SOURCE}.content[0]"),
    (_part(), VALUE, PART),
    (_part(type="text", text="a", more=1), UNKNOWN, f"{PART}.more"),
    (_part(type="thinking", thinking="a"), VALUE, f"{PART}.type"),
    (_part(**USE), VALUE, f"{PART}.type"),
    (_block("assistant", type="thinking", thinking=5), TYPE, f"{PART}.thinking"),
    (_block("assistant", type="tool_result", tool_use_id="t"), VALUE, f"{PART}.type"),
    (_result({"type": "image"}), MISSING, f"{PART}.content[0].source"),
    (_result({}), VALUE, f"{PART}.content[0]"),
]
ANTHROPIC_MESSAGES: list[Row] = [
    *ANTHROPIC,
    ({"max_tokens": None}, TYPE, "max_tokens"),
    ({"max_tokens": 32_000}, VALUE, "max_tokens"),
    (_image(**PNG), VALUE, PART),
    ({"stop": ["x"]}, UNSUPPORTED, "stop"),
    ({"thinking": {"type": "between_tools"}, "output_config": {"effort": "low"}}, VALUE, "output_config.effort"),
    ({"thread": {"id": "t"}}, "thread_unsupported_request", "thread"),
    # What Anthropic's clients send.
    ({"cache_control": {"type": "ephemeral"}, "metadata": {"user_id": "u"}, "service_tier": "auto"}, TAKEN, ""),
    ({"system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]}, TAKEN, ""),
    # This model reads no effort.
    ({"thinking": {"type": "enabled", "budget_tokens": 1024, "display": "summarized"}}, VALUE, "thinking.type"),
    ({"thinking": {"type": "adaptive", "display": "updates", "block_binding": {}}}, TAKEN, ""),
    ({"tools": [BASH, {**EDITOR, "max_characters": 5000, "cache_control": None}]}, TAKEN, ""),
    ({"tools": [{**ADD, "type": "custom", "eager_input_streaming": True, "allowed_callers": ["direct"]}]}, TAKEN, ""),
    (
        {"tools": [ADD], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        TAKEN,
        "",
    ),
    (_part(type="text", text="say a", citations=None), TAKEN, ""),
    (_document(source=NOTES, title=None, cache_control={"type": "ephemeral"}), TAKEN, ""),
    (_block("assistant", type="thinking", thinking="a", signature="s"), TAKEN, ""),
    (_block("assistant", **USE, caller={"type": "direct"}, toolset_name="b"), TAKEN, ""),
    ({"messages": [HELLO, {"role": "assistant", "content": []}, HELLO]}, TAKEN, ""),
]
COUNT_TOKENS: list[Row] = [
    *ANTHROPIC,
    # These have no effect on the prompt.
    *(({name: None}, UNKNOWN, name) for name in ("max_tokens", "temperature", "stream", "stop_sequences")),
]

ASKED = {"role": "user", "content": "say x"}


def _called(arguments: Any) -> dict[str, Any]:
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": arguments}}]}
    return {"messages": [call, ASKED]}


OLLAMA: list[Row] = [
    ({"nonsense": 1}, UNKNOWN, "nonsense"),
    *_wrong(temperature=2.5, think="hard", keep_alive="soon", truncate=True, shift=True, top_logprobs=2),
    *_each("format", "xml", {"type": "nonsense"}),
    ({"options": {"num_ctx": 4096}}, UNKNOWN, "options.num_ctx"),
    ({"options": {"typical_p": 1}}, TAKEN, ""),
    ({"options": {"typical_p": 0.7}}, VALUE, "options.typical_p"),
    ({"format": ""}, TAKEN, ""),
    ({"keep_alive": "5m"}, TAKEN, ""),
    ({"truncate": False, "shift": False}, TAKEN, ""),
    ({"logprobs": True, "top_logprobs": 21}, VALUE, "top_logprobs"),
    ({"options": {"num_predict": 100_000}}, VALUE, "options.num_predict"),
]
OLLAMA_CHAT: list[Row] = [
    *OLLAMA,
    ({"messages": [{"role": "robot"}]}, VALUE, f"{FIRST}.role"),
    ({"messages": [{"role": "User", "content": "say x", "images": []}]}, TAKEN, ""),
    ({"messages": [{"role": "user", "images": [5]}]}, TYPE, f"{FIRST}.images[0]"),
    ({"messages": [{"role": "user", "images": [""]}]}, VALUE, f"{FIRST}.images[0]"),
    (
        {"messages": [{"role": "user", "tool_calls": [{"function": {"name": "a"}}]}]},
        VALUE,
        f"{FIRST}.tool_calls",
    ),
    *((_called(given), TAKEN, "") for given in ('{"a', "", [1], 5, True, None, {"a": float("nan")})),
    (_called({"a": "\ud800"}), VALUE, f"{FIRST}.tool_calls[0].function.arguments"),
    (_called("\ud800"), VALUE, f"{FIRST}.tool_calls[0].function.arguments"),
    ({"tool_choice": "required"}, VALUE, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": "always"}, VALUE, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "function"}}, VALUE, "tool_choice"),
    (
        {"tools": [TOOL], "tool_choice": {"type": "function", "name": "add", "function": {"name": "add"}}},
        VALUE,
        "tool_choice",
    ),
]
OLLAMA_GENERATE: list[Row] = [
    *OLLAMA,
    ({"template": "", "context": [], "system": "", "raw": False}, TAKEN, ""),
    ({"template": "{{ .Prompt }}"}, VALUE, "template"),
    ({"context": [1]}, VALUE, "context"),
    ({"raw": True, "system": "y"}, VALUE, "system"),
    ({"raw": True, "images": ["AA=="]}, VALUE, "images"),
    ({"suffix": "x", "images": ["AA=="]}, VALUE, "images"),
    ({"suffix": "y", "think": True}, VALUE, "think"),
]

TOKENIZE: list[Row] = [
    ({"prompt": "x", **_asked("x")}, VALUE, "messages"),
    ({"prompt": "x", "content": "x"}, VALUE, "content"),
    ({"prompt": "x", "add_special": True}, VALUE, "add_special"),
    ({"content": "x", "tools": []}, VALUE, "tools"),
    ({"prompt": "x", "device": "cpu"}, UNKNOWN, "device"),
    ({"prompt": ["x"]}, TYPE, "prompt"),
    ({"messages": []}, VALUE, "messages"),
    ({"messages": [HELLO] * 4097}, VALUE, "messages"),
    ({"messages": [HELLO], "tools": _tools(513)}, VALUE, "tools"),
    ({"prompt": "x", "model": "gpt-9"}, "model_not_found", "model"),
    ({"messages": [HELLO], "chat_template_kwargs": {"effort": 1}}, VALUE, "chat_template_kwargs"),
]
APPLY_TEMPLATE: list[Row] = [
    ({}, MISSING, "messages"),
    ({"messages": [], "model": "gpt-9"}, VALUE, "messages"),
    ({"messages": [HELLO] * 4097}, VALUE, "messages"),
    ({"messages": [HELLO], "model": "gpt-9"}, "model_not_found", "model"),
]
DETOKENIZE: list[Row] = [
    ({}, MISSING, "tokens"),
    ({"tokens": ["5"]}, TYPE, "tokens[0]"),
    *(({"tokens": [5, token]}, VALUE, "tokens") for token in (-1, 257, 10**30)),
]

_NO_PREFIXES = ["", ".hidden", "../up", "a/b", "a\\b", "/tmp/x", "C:x", "a b", "a\n", "a\0", "é", "x" * 65, "-a", "٣"]
RUNTIME_OPTIONS: list[Row] = [
    ({}, VALUE, "terminate_session"),
    *(({"terminate_session": value}, VALUE, "terminate_session") for value in ("2", "", "true", 1, 0, True)),
    *(({"enable_profiling": prefix}, VALUE, "enable_profiling") for prefix in _NO_PREFIXES),
    *(({"enable_profiling": value}, TYPE, "enable_profiling") for value in (True, 1)),
    *(({"enable_profiling": prefix}, TAKEN, "") for prefix in ("1", "slow-run_2.x", "x" * 64, "0")),
    ({"disable_profiling": "1"}, UNKNOWN, "disable_profiling"),
    ({"terminate_session": "1", "device": "gpu"}, VALUE, "device"),
    ({"terminate_session": "1", "device": 0}, TYPE, "device"),
    ({"terminate_session": "0", "request_id": "x"}, VALUE, "request_id"),
    ({"terminate_session": "1", "request_id": ""}, VALUE, "request_id"),
    ({"terminate_session": "1", "request_id": 5}, TYPE, "request_id"),
    ({"terminate_session": "1", "request_id": "\ud800"}, VALUE, "request_id"),
]
PROFILES: list[Row] = [
    ({}, MISSING, "device"),
    *_wrong(device="cuda", phase="all", first_tokens=0, max_tokens=0, max_seconds=604801, slow_token_ratio=1),
    *_wrong(next_tokens=5),
    *_each("prefix", "../x", "0"),
    *_each("tokens", [3], [5, 4]),
    ({"request_id": "missing"}, "request_not_found", "request_id"),
    ({"tokens": [-1, 4]}, VALUE, "tokens[0]"),
    ({"first_tokens": 3, "tokens": [1, 2]}, VALUE, "tokens"),
    ({"slow_token_ms": 5, "slow_token_ratio": 2}, VALUE, "slow_token_ratio"),
    ({"slow_token_ms": 5, "phase": "prefill"}, VALUE, "slow_token_ms"),
    ({"slow_token_ms": 5, "max_per_hour": 3601}, VALUE, "max_per_hour"),
    ({"every": 5}, UNKNOWN, "every"),
]

# What the rows of an endpoint are added to, and the rows.
REFUSALS: dict[str, tuple[dict[str, Any], list[Row]]] = {
    "/v1/chat": ({"messages": MESSAGES}, OWN_CHAT),
    "/v1/chat/stream": ({"messages": MESSAGES}, [({"stream": False}, VALUE, "stream"), ({"n": 2}, VALUE, "n")]),
    "/v1/chat/completions": ({"messages": MESSAGES}, CHAT_COMPLETIONS),
    "/v1/completions": ({"prompt": RAW}, COMPLETIONS),
    "/v1/responses": ({"input": "say x"}, RESPONSES),
    "/v1/responses/compact": ({}, COMPACT),
    "/v1/conversations": ({}, CONVERSATIONS),
    "/v1/messages": ({"messages": MESSAGES, "max_tokens": 5}, ANTHROPIC_MESSAGES),
    "/v1/messages/count_tokens": ({"messages": MESSAGES}, COUNT_TOKENS),
    "/api/chat": ({"messages": MESSAGES, "stream": False}, OLLAMA_CHAT),
    "/api/generate": ({"prompt": "say x", "stream": False}, OLLAMA_GENERATE),
    "/api/pull": ({}, [({"model": "org/name", "insecure": True}, VALUE, "insecure")]),
    "/tokenize": ({}, TOKENIZE),
    "/detokenize": ({}, DETOKENIZE),
    "/apply-template": ({}, APPLY_TEMPLATE),
    "/v1/admin/runtime_options": ({}, RUNTIME_OPTIONS),
    "/v1/admin/profiles": ({}, PROFILES),
}

WEB_SEARCH = {"type": "web_search_20250305", "name": "web_search"}
SEARCHES = [{"type": "tool_search_tool_regex_20251119"}, {"type": "tool_search_tool_bm25"}]
FILE = {"type": "input_file", "file_data": "AA=="}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": [FILE]}
_OF_GRAMMARS = {
    "guided_decoding_backend": "guidance",
    "guided_whitespace_pattern": " ",
    "structured_outputs": {"regex": "x", "whitespace_pattern": " "},
}
_NAMES_OF_GRAMMARS = "guided_decoding_backend, guided_whitespace_pattern, structured_outputs.whitespace_pattern"
_OTHER_DOCUMENTS: list[Any] = [
    PDF,
    {"type": "url", "url": "https://example.com/a.pdf"},
    {"type": "file", "file_id": "f"},
    {"type": "text", "data": 5},
    None,
]
# What lenient endpoints leave out and name, and strict ones refuse; "" where a lenient one has nothing to leave out.
LEFT_OUT: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/chat/completions", {"verbosity": "low"}, "verbosity"),
    ("/v1/chat/completions", {"verbosity": "low", "stream": True}, "verbosity"),
    ("/v1/chat/completions", {"web_search_options": {}, "fallbacks": ["x"]}, "fallbacks, web_search_options"),
    ("/v1/chat/completions", _part(type="image_url", image_url={"url": "data:,"}), f"{PART} (image)"),
    ("/v1/chat/completions", _part(type="file", file={"file_data": "AA=="}), f"{PART} (file)"),
    ("/v1/chat/completions", _OF_GRAMMARS, _NAMES_OF_GRAMMARS),
    ("/v1/completions", _OF_GRAMMARS, _NAMES_OF_GRAMMARS),
    ("/v1/responses", {"client_metadata": {"a": "b"}}, "client_metadata"),
    ("/v1/responses", {"client_metadata": {"a": "b"}, "stream": True}, "client_metadata"),
    ("/v1/responses", {"text": {"verbosity": "low"}}, "text.verbosity"),
    ("/v1/responses", {"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
    (
        "/v1/responses",
        {"tools": [{"type": "web_search"}, WEATHER, {"type": "image_generation"}]},
        "tools[0] (web_search), tools[2] (image_generation)",
    ),
    ("/v1/responses", _input({"role": "user", "content": [FILE]}), "input[0].content[0] (file)"),
    ("/v1/responses", _input(CALL, OUTPUT), "input[1].output[0] (file)"),
    ("/v1/messages", {"context_management": {"edits": []}}, "context_management"),
    ("/v1/messages", {"context_management": {"edits": []}, "stream": True}, "context_management"),
    ("/v1/messages", {"context_management": None}, ""),
    ("/v1/messages", {"tools": [{**ADD, "defer_loading": True}, {**ADD, "name": "b"}]}, ""),
    (
        "/v1/messages",
        {"tools": [ADD, {**ADD, "name": "b", "defer_loading": True}, SEARCHES[0]]},
        "tools[2] (tool_search_tool_regex_20251119), tools[1].defer_loading",
    ),
    (
        "/v1/messages",
        {"tools": SEARCHES},
        "tools[0] (tool_search_tool_regex_20251119), tools[1] (tool_search_tool_bm25)",
    ),
    ("/v1/messages", {"tools": [ADD, WEB_SEARCH]}, "tools[1] (web_search_20250305)"),
    (
        "/v1/messages",
        {"tools": [{**ADD, "allowed_callers": ["direct", "code_execution_20250825"], "color": "red"}]},
        "tools[0].allowed_callers, tools[].color",
    ),
    (
        "/v1/messages",
        {"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}},
        "output_config.effort",
    ),
    ("/v1/messages", _image(**PNG), f"{PART} (image)"),
    *(("/v1/messages", _document(source=source), f"{PART} (document)") for source in _OTHER_DOCUMENTS),
    (
        "/v1/messages",
        _document(source={"type": "content", "content": [{"type": "image", "source": PNG}]}),
        f"{SOURCE}.content[0] (image)",
    ),
    (
        "/v1/messages",
        _block(type="tool_result", tool_use_id="t", content=[{"type": "document", "source": PDF}]),
        f"{PART}.content[0] (document)",
    ),
    ("/api/chat", {"truncate": True, "shift": True}, "truncate, shift"),
    ("/api/chat", {"options": {"num_ctx": 4096, "num_gpu": 1}}, "options.num_ctx, options.num_gpu"),
    ("/api/chat", _asked("say x", images=["AA==", "AA=="]), f"{FIRST}.images[0] (image), {FIRST}.images[1] (image)"),
    ("/api/chat", _asked("say x", tool_calls=[{"function": {"name": "f"}}]), f"{FIRST}.tool_calls"),
    ("/api/chat", _asked("say x", tool_calls=[]), ""),
    ("/api/chat", {**_asked("say x", id=1), "user": "me", "width": None}, "user, messages[].id"),
    ("/api/generate", {"images": ["AA=="]}, "images[0] (image)"),
]
