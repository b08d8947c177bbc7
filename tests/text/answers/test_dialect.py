"""The model's formats, detected in its chat template."""

import pytest

from genai_server.errors import ConfigurationError
from genai_server.text.answers.reasoning import HARMONY, THINK, ReasoningFormat
from genai_server.text.tool_formats.all_formats import TOOL_FORMATS, Dialect, detect_tool_format, read_dialect
from tests.running_server import DEMO


@pytest.mark.parametrize(
    ("template", "named", "tool_format", "reasoning"),
    [
        ("{{ messages }}", "auto", None, None),
        ("<tool_call> </think>", "auto", "hermes", THINK),
        # The operator may name a format or none.
        ("{{ messages }}", "hermes", "hermes", None),
        ("<tool_call>", "none", None, None),
        # A model of Harmony reasons in its messages.
        ("<|channel|>analysis<|message|> functions.", "auto", "harmony", HARMONY),
        ("<|channel|>analysis<|message|>", "none", None, HARMONY),
        ("<tool_call> </think>", "harmony", "harmony", HARMONY),
    ],
)
def test_template_and_operator_determine_both_formats(
    template: str, named: str, tool_format: str | None, reasoning: ReasoningFormat | None
) -> None:
    expected = Dialect(TOOL_FORMATS[tool_format] if tool_format else None, reasoning)
    assert read_dialect(template, named) == expected


def test_an_unknown_format_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ConfigurationError, match=r"GENAI_TOOL_PARSER=yaml: .*hermes"):
        read_dialect("", "yaml")


# The lines are the telling ones of the named models' templates.
@pytest.mark.parametrize(
    ("template", "name"),
    [
        # Qwen 2.5 and 3, Hermes 2 Pro
        ('{{- \'<tool_call>\\n{"name": "\' + tool_call.name }}', "hermes"),
        # Llama 3.1 and 3.2
        ('Respond in the format {"name": function name, "parameters": dictionary of argument name and', "llama3_json"),
        ('{{- "<|python_tag|>" + tool_call.name + ".call(" }}', "llama3_json"),
        # vLLM's for Llama 3.2 and 4
        ("Respond in the format [func_name1(params_name1=params_value1, params_name2=", "pythonic"),
        # Mistral 7B v0.3, Magistral
        ('{{- "[TOOL_CALLS] [" }}', "mistral"),
        ("{{- '[TOOL_CALLS]' }}{{- name + '[ARGS]' + arguments }}", "mistral"),
        # Phi-4-mini, and vLLM's for it
        ("{{ '<|tool|>' + message['tools'] + '<|/tool|>' }}", "phi4mini"),
        ('a single JSON list formatted as functools[{"name": [function name]', "phi4mini"),
        # Qwen3-Coder
        ("{{- '<tool_call>\\n<function=' + tool_call.name + '>' }}{{- '<parameter=' + name + '>' }}", "qwen3_coder"),
        # GLM 4.5 to 4.7
        ("<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>", "glm"),
        # MiniMax M2
        ("{%- set toolcall_begin_token = '<minimax:tool_call>' -%}<parameter name=", "minimax"),
        # DeepSeek V3 and R1, V3.1
        ("'<｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + name + '\\n' + '```json'", "deepseek_v3"),
        ("'<｜tool▁call▁begin｜>' + tool['function']['name'] + '<｜tool▁sep｜>'", "deepseek_v31"),
        # Kimi K2
        ("<|tool_call_begin|>{{ id }}<|tool_call_argument_begin|>{{ arguments }}<|tool_call_end|>", "kimi"),
        # gpt-oss
        ('{{- "functions." + tool_call.name + "<|channel|>commentary " }}', "harmony"),
        # Granite 3.0 to 3.3, 4.0
        ("{{ '<|start_of_role|>' }} respond only with <|tool_call|> followed by a JSON list", "granite"),
        ("{{ '<|start_of_role|>' }}{{- '\\n<tool_call>\\n{\"name\": \"' + tool_call.name }}", "hermes"),
        # Qwen 3.5, Nemotron 3
        ("<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1", "qwen3_coder"),
        # LFM2, whose template shows the tools' marker only, LFM2.5-8B-A1B and LFM2.5-1.2B
        ('"List of tools: <|tool_list_start|>[" -%}', "lfm2"),
        ('{{- "<|tool_call_start|>[" + (calls | join(", ")) + "]<|tool_call_end|>" -}}', "lfm2"),
        ('"<|im_start|>system\n" + ("\n" if ns.system_prompt else "") + "List of tools: [" -%}', "lfm2"),
        # OLMo 3
        ("'<functions></functions><|im_end|>' '<function_calls>' + message['function_calls']", "olmo3"),
        # Nemotron Nano 2, Llama-3.3-Nemotron-Super
        ('use the following format:\n<TOOLCALL>[{{"name": "tool_name1"', "nemotron"),
        # ERNIE 4.5 Thinking
        ('<tool_call>\n{"name": tool_name, "arguments": args}\n</tool_call>', "hermes"),
        # Seed-OSS, whose calls are in tags of its own
        ("<seed:tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>value_1", None),
        # MiniMax M3, Apriel 1.5
        ("{%- set ns_token = ']<]minimax[>[' -%}{%- set toolcall_begin_token = ns_token ~ '<tool_call>' -%}", None),
        ('within <tool_call></tool_call> XML tags.\n<tool_calls>[{"name": <function-name-1>', None),
        # Llama 3.1 with functions of the user
        ("reply with <function=example_function_name>{parameters}</function>", None),
        ("{{ message.content }}", None),
    ],
)
def test_template_determines_the_format(template: str, name: str | None) -> None:
    assert detect_tool_format(template) == name


def test_the_demo_model_writes_calls_as_hermes_does() -> None:
    assert detect_tool_format((DEMO / "chat_template.jinja").read_text(encoding="utf-8")) == "hermes"
