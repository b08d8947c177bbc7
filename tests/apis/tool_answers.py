"""Answers with tool calls in every format, and the functions that they call."""

from typing import Any

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
CALLS = [("get_weather", {"city": "Oslo", "days": 3}), ("now", {})]
THOUGHT = "<think>⏎Hm.⏎</think>⏎⏎"
# Reasoning, a text and both calls, as commands of the scripted device say them.
ANSWERS = {
    "qwen3_coder": (
        f"{THOUGHT}I look.⏎⏎<tool_call>⏎<function=get_weather>⏎<parameter=city>⏎Oslo⏎</parameter>⏎<parameter=days>⏎3⏎"
        "</parameter>⏎</function>⏎</tool_call>⏎<tool_call>⏎<function=now>⏎</function>⏎</tool_call>"
    ),
    "glm": (
        f"{THOUGHT}I look.⏎<tool_call>get_weather⏎<arg_key>city</arg_key>⏎<arg_value>Oslo</arg_value>⏎"
        "<arg_key>days</arg_key>⏎<arg_value>3</arg_value>⏎</tool_call>⏎<tool_call>now⏎</tool_call>"
    ),
    "minimax": (
        f'{THOUGHT}I look.⏎<minimax:tool_call>⏎<invoke name="get_weather">⏎<parameter name="city">Oslo</parameter>⏎'
        '<parameter name="days">3</parameter>⏎</invoke>⏎<invoke name="now">⏎</invoke>⏎</minimax:tool_call>'
    ),
    "deepseek_v3": (
        f"{THOUGHT}I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather⏎```json⏎"
        '{"city": "Oslo", "days": 3}⏎```<｜tool▁call▁end｜>⏎<｜tool▁call▁begin｜>function<｜tool▁sep｜>now⏎```json⏎'
        "{}⏎```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "deepseek_v31": (
        f"{THOUGHT}I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
        '{"city": "Oslo", "days": 3}<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜>'
        "<｜tool▁calls▁end｜>"
    ),
    "kimi": (
        f"{THOUGHT}I look.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
        '<|tool_call_argument_begin|>{"city": "Oslo", "days": 3}<|tool_call_end|><|tool_call_begin|>functions.now:1'
        "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"
    ),
    "granite": (
        f'{THOUGHT}I look.<|tool_call|>[{{"name": "get_weather", "arguments": {{"city": "Oslo", "days": 3}}}}, '
        '{"name": "now", "arguments": {}}]'
    ),
    "lfm2": (f'{THOUGHT}I look.<|tool_call_start|>[get_weather(city="Oslo", days=3), now()]<|tool_call_end|>'),
    "olmo3": f'{THOUGHT}I look.⏎<function_calls>get_weather(city="Oslo", days=3)⏎now()</function_calls>',
    "nemotron": (
        f'{THOUGHT}I look.⏎<TOOLCALL>[{{"name": "get_weather", "arguments": {{"city": "Oslo", "days": 3}}}}, '
        '{"name": "now", "arguments": {}}]</TOOLCALL>'
    ),
    "harmony": (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
        '{"city": "Oslo", "days": 3}<|call|><|start|>assistant<|channel|>commentary to=functions.now '
        "<|constrain|>json<|message|>{}<|call|>"
    ),
    "hermes": (
        f'{THOUGHT}I look.⏎<tool_call>⏎{{"name": "get_weather", "arguments": {{"city": "Oslo", "days": 3}}}}⏎'
        '</tool_call>⏎<tool_call>⏎{"name": "now", "arguments": {}}⏎</tool_call>'
    ),
    "llama3_json": (
        f'{THOUGHT}I look.⏎{{"name": "get_weather", "parameters": {{"city": "Oslo", "days": 3}}}}⏎'
        '{"name": "now", "parameters": {}}'
    ),
    "pythonic": f'{THOUGHT}I look.⏎[get_weather(city="Oslo", days=3), now()]',
    "mistral": (
        f'{THOUGHT}I look.⏎[TOOL_CALLS][{{"name": "get_weather", "arguments": {{"city": "Oslo", "days": 3}}}}, '
        '{"name": "now", "arguments": {}}]'
    ),
    "phi4mini": (
        f'{THOUGHT}I look.⏎<|tool_call|>[{{"name": "get_weather", "arguments": {{"city": "Oslo", "days": 3}}}}, '
        '{"name": "now", "arguments": {}}]<|/tool_call|>'
    ),
}


def functions(form: str) -> list[dict[str, Any]]:
    """The functions, with a different description per format, because output specs of equal functions are cached."""
    return [
        {"name": "get_weather", "description": form, "parameters": PARAMETERS},
        {"name": "now", "description": form, "parameters": {"type": "object", "properties": {}}},
    ]
