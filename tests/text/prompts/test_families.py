"""Conversations with calls and results in the chat templates of newer families.

The templates are short, but read messages like the families' own and write the same markers.
"""

from typing import Any

import pytest

from genai_server.text.prompts.chat_template import ChatTemplate
from genai_server.text.prompts.prompt import PromptWriter
from genai_server.text.tool_formats.all_formats import read_dialect

EACH = "{% for m in messages %}{% if m.role == 'tool' %}"
TEMPLATES = {
    "qwen3_coder": (
        EACH
        + "<tool_response>{{ m.content }}</tool_response>{% elif m.tool_calls %}{{ m.content or '' }}"
        + "{% for c in m.tool_calls %}<tool_call>\n<function={{ c.function.name }}>\n"
        + "{% for name, value in c.function.arguments.items() %}<parameter={{ name }}>\n"
        + "{{ value if value is string else value | tojson }}\n</parameter>\n{% endfor %}</function>\n</tool_call>"
        + "{% endfor %}{% else %}{{ m.content }}{% endif %}{% endfor %}{% if tools %}{% endif %}"
    ),
    "glm": (
        EACH
        + "<|observation|>{{ m.content }}{% elif m.tool_calls %}{{ m.content or '' }}"
        + "{% for c in m.tool_calls %}\n<tool_call>{{ c.function.name }}\n"
        + "{% for k, v in c.function.arguments.items() %}"
        + "<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v | tojson(ensure_ascii=False) if v is not string else v }}"
        + "</arg_value>\n{% endfor %}</tool_call>{% endfor %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
        + "{% if tools %}{% endif %}"
    ),
    "minimax": (
        EACH
        + "<response>{{ m.content }}</response>{% elif m.tool_calls %}{{ m.content or '' }}\n<minimax:tool_call>\n"
        + '{% for c in m.tool_calls %}<invoke name="{{ c.function.name }}">\n'
        + '{% for k, v in c.function.arguments | items %}<parameter name="{{ k }}">'
        + "{{ v | tojson if v is not string else v }}</parameter>\n{% endfor %}</invoke>\n{% endfor %}"
        + "</minimax:tool_call>{% else %}{{ m.content }}{% endif %}{% endfor %}{% if tools %}{% endif %}"
    ),
    # These templates add arguments, and a content that may be None, to strings.
    "deepseek_v3": (
        EACH
        + "{{ '<｜tool▁output▁begin｜>' + m.content }}{% elif m.tool_calls %}{{ m.content + '<｜tool▁calls▁begin｜>' }}"
        + "{% for c in m.tool_calls %}{{ '<｜tool▁call▁begin｜>' + c.type + '<｜tool▁sep｜>' + c.function.name + '\n'"
        + " + '```json' + '\n' + c.function.arguments + '\n' + '```' + '<｜tool▁call▁end｜>' }}{% endfor %}"
        + "<｜tool▁calls▁end｜>{% else %}{{ m.content }}{% endif %}{% endfor %}{% if tools %}{% endif %}"
    ),
    "deepseek_v31": (
        EACH
        + "{{ '<｜tool▁output▁begin｜>' + m.content }}{% elif m.tool_calls %}{{ m.content + '<｜tool▁calls▁begin｜>' }}"
        + "{% for c in m.tool_calls %}{{ '<｜tool▁call▁begin｜>' + c.function.name + '<｜tool▁sep｜>'"
        + " + c.function.arguments + '<｜tool▁call▁end｜>' }}{% endfor %}"
        + "<｜tool▁calls▁end｜>{% else %}{{ m.content }}{% endif %}{% endfor %}{% if tools %}{% endif %}"
    ),
    "kimi": (
        EACH
        + "## Return of {{ m.tool_call_id }}\n{{ m.content }}{% elif m.tool_calls %}{{ m.content or '' }}"
        + "<|tool_calls_section_begin|>{% for c in m.tool_calls %}<|tool_call_begin|>{{ c.id }}"
        + "<|tool_call_argument_begin|>{{ c.function.arguments | tojson }}<|tool_call_end|>{% endfor %}"
        + "<|tool_calls_section_end|>{% else %}{{ m.content }}{% endif %}{% endfor %}{% if tools %}{% endif %}"
    ),
    # LFM2.5-8B-A1B. It refuses arguments in JSON, and shows the reasoning in `thinking`.
    "lfm2": (
        "{% if tools %}List of tools: {{ tools | tojson }}{% endif %}{% for message in messages %}"
        "<|im_start|>{{ message.role }}\n{% generation %}"
        "{% if message.thinking is defined %}<think>{{ message.thinking }}</think>{% endif %}"
        "{% if message.get('content') %}{{ message.content }}{% endif %}{% if message.tool_calls %}"
        "<|tool_call_start|>[{% for c in message.tool_calls %}{{ c.function.name }}("
        "{% for k, v in c.function.arguments.items() %}{{ k }}={{ '\"' + v + '\"' if v is string else v | string }}"
        "{{ '' if loop.last else ', ' }}{% endfor %}){% endfor %}]<|tool_call_end|>{% endif %}{% endgeneration %}"
        "<|im_end|>\n{% endfor %}"
    ),
    # Olmo-3.1-32B-Instruct.
    "olmo3": (
        "{% for m in messages %}{% if m['role'] == 'tool' %}{{ '<|im_start|>environment\n' + m['content'] }}"
        "{% elif m.get('tool_calls', none) is not none %}<function_calls>{% for c in m['tool_calls'] %}"
        "{{ c['function']['name'] + '(' }}{% for k, v in c['function']['arguments'].items() %}"
        "{{ k ~ '=' ~ (v | tojson) }}{{ '' if loop.last else ', ' }}{% endfor %}){% endfor %}</function_calls>"
        "{% else %}{{ m['content'] }}{% endif %}{% endfor %}"
        "{% if tools is none %}<functions></functions>{% endif %}"
    ),
    # NVIDIA-Nemotron-Nano-9B-v2.
    "nemotron": (
        "{% for m in messages %}{% if m['role'] == 'tool' %}<TOOL_RESPONSE>[{{ m['content'] }}]</TOOL_RESPONSE>"
        "{% elif m.tool_calls %}<TOOLCALL>[{% for c in m.tool_calls %}"
        '{{ \'{"name": "\' + c.function.name + \'", "arguments": \' }}{% if c.function.arguments is string %}'
        "{{ c.function.arguments }}{% else %}{{ c.function.arguments | tojson }}{% endif %}{{ '}' }}{% endfor %}"
        "]</TOOLCALL>"
        "{% else %}{{ m['content'] }}{% endif %}{% endfor %}{% if tools %}{% endif %}"
    ),
    # It does not support calls.
    "granite": (
        "{% for m in messages %}{{ '<|start_of_role|>' + m['role'] + '<|end_of_role|>' + m['content'] }}{% endfor %}"
        "{% if tools %}respond only with <|tool_call|> followed by a JSON list{% endif %}"
    ),
    "harmony": (
        EACH
        + "<|start|>functions.now to=assistant<|channel|>commentary<|message|>{{ m.content | tojson }}<|end|>"
        + "{% elif 'tool_calls' in m %}{% if '<|channel|>' in m.content or (m.content and m.thinking) %}"
        + "{{ raise_exception('both') }}{% endif %}{% set c = m.tool_calls[0].function %}{% set message = m %}"
        + "{% if message.thinking or m.content %}<|start|>assistant<|channel|>analysis<|message|>"
        + "{{ message.thinking or m.content }}<|end|>{% endif %}"
        + "<|start|>assistant to=functions.{{ c.name }}<|channel|>commentary json<|message|>{{ c.arguments | tojson }}"
        + "<|call|>{% else %}{{ m.content }}{% endif %}{% endfor %}{% if tools %}{% endif %}"
    ),
}
ARGUMENTS = '{"city": "Ør <b>", "days": [3]}'
RENDERED = {
    "qwen3_coder": (
        "<tool_call>\n<function=now>\n<parameter=city>\nØr <b>\n</parameter>\n<parameter=days>\n[3]\n</parameter>\n"
        "</function>\n</tool_call><tool_response>21</tool_response>"
    ),
    "glm": (
        "<tool_call>now\n<arg_key>city</arg_key>\n<arg_value>Ør <b></arg_value>\n<arg_key>days</arg_key>\n"
        "<arg_value>[3]</arg_value>\n</tool_call><|observation|>21"
    ),
    "minimax": (
        '\n<minimax:tool_call>\n<invoke name="now">\n<parameter name="city">Ør <b></parameter>\n'
        '<parameter name="days">[3]</parameter>\n</invoke>\n</minimax:tool_call><response>21</response>'
    ),
    "deepseek_v3": (
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{ARGUMENTS}\n```"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜tool▁output▁begin｜>21"
    ),
    "deepseek_v31": (
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{ARGUMENTS}<｜tool▁call▁end｜>"
        "<｜tool▁calls▁end｜><｜tool▁output▁begin｜>21"
    ),
    "kimi": (
        f"<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{ARGUMENTS}"
        "<|tool_call_end|><|tool_calls_section_end|>## Return of functions.now:0\n21"
    ),
    "lfm2": (
        'List of tools: [{"type": "function", "function": {"name": "now"}}]<|im_start|>assistant\n<think>Hm.</think>'
        '<|tool_call_start|>[now(city="Ør <b>", days=[3])]<|tool_call_end|>'
        "<|im_end|>\n<|im_start|>tool\n21<|im_end|>\n"
    ),
    "olmo3": '<function_calls>now(city="Ør <b>", days=[3])</function_calls><|im_start|>environment\n21',
    "nemotron": (
        f'<TOOLCALL>[{{"name": "now", "arguments": {ARGUMENTS}}}]</TOOLCALL><TOOL_RESPONSE>[21]</TOOL_RESPONSE>'
    ),
    "granite": (
        f'<|start_of_role|>assistant<|end_of_role|><|tool_call|>[{{"name": "now", "arguments": {ARGUMENTS}}}]'
        "<|start_of_role|>tool_response<|end_of_role|>21respond only with <|tool_call|> followed by a JSON list"
    ),
    "harmony": (
        "<|start|>assistant<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant to=functions.now<|channel|>"
        f"commentary json<|message|>{ARGUMENTS}<|call|>"
        '<|start|>functions.now to=assistant<|channel|>commentary<|message|>"21"<|end|>'
    ),
}
CALL = {"id": "functions.now:0", "type": "function", "function": {"name": "now", "arguments": ARGUMENTS}}


MESSAGES: list[dict[str, Any]] = [
    {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "Hm."},
    {"role": "tool", "tool_call_id": CALL["id"], "content": "21"},
]


def _prompt(source: str, form: str, **fields: Any) -> str:
    tool_format = read_dialect(source).tool_format
    assert tool_format is not None
    assert tool_format.name == form
    writer = PromptWriter({"default": ChatTemplate(source)}, tool_format=tool_format)
    called, result = MESSAGES
    return writer.write([called | fields, result], [{"type": "function", "function": {"name": "now"}}], None).text


@pytest.mark.parametrize("form", sorted(TEMPLATES))
def test_a_call_and_its_result_go_through_the_template(form: str) -> None:
    assert _prompt(TEMPLATES[form], form) == RENDERED[form]


def test_lfm2_gets_the_tools_and_calls_that_it_cannot_show() -> None:
    # LFM2-1.2B: its template has the tools and the results, and no calls.
    source = (
        "{% if tools %}List of tools: <|tool_list_start|>{{ tools | tojson }}<|tool_list_end|>{% endif %}"
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['role'] == 'tool' %}"
        "{{ '<|tool_response_start|>' + m['content'] + '<|tool_response_end|>' }}{% else %}{{ m['content'] }}"
        "{% endif %}<|im_end|>\n{% endfor %}"
    )
    assert _prompt(source, "lfm2") == (
        'List of tools: <|tool_list_start|>[{"type": "function", "function": {"name": "now"}}]<|tool_list_end|>'
        '<|im_start|>assistant\n<|tool_call_start|>[now(city="Ør <b>", days=[3])]<|tool_call_end|><|im_end|>\n'
        "<|im_start|>tool\n<|tool_response_start|>21<|tool_response_end|><|im_end|>\n"
    )


def test_gpt_oss_content_replaces_the_reasoning() -> None:
    expected = RENDERED["harmony"].replace("Hm.", "I look.")
    assert _prompt(TEMPLATES["harmony"], "harmony", content="I look.") == expected
