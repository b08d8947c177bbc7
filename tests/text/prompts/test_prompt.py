"""The prompt of a conversation: its template, its variables, and refusals."""

from typing import Any

import pytest

from genai_server.errors import InvalidField
from genai_server.text.prompts.chat_template import ChatTemplate
from genai_server.text.prompts.prompt import PromptWriter
from genai_server.text.prompts.special_tokens import Prompt
from genai_server.text.tool_formats.all_formats import TOOL_FORMATS
from genai_server.text.tool_formats.tool_format import ToolFormat

HELLO: list[dict[str, Any]] = [{"role": "user", "content": "Hello"}]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
CALLED = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [CALL]}]
TURNS = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}.{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def _write(
    source: str | dict[str, str],
    messages: list[dict[str, Any]] = HELLO,
    tools: list[dict[str, Any]] | None = None,
    **template_kwargs: Any,
) -> str:
    sources = {"default": source} if isinstance(source, str) else source
    writer = PromptWriter({name: ChatTemplate(one) for name, one in sources.items()}, ["<s>"])
    return writer.write(messages, tools, template_kwargs).text


DEVELOPER = [{"role": "developer", "content": "x"}]
EACH_TOOL = "{% for tool in tools %}{{ tool.function.name }}{% endfor %}"


def _with_calls(content: str, arguments: str) -> str:
    """A template that writes contents, calls and results; with expressions for a content and arguments."""
    call = f"{{% for c in m.tool_calls or [] %}}{{{{ c.function.name }}}}({{{{ {arguments} }}}}){{% endfor %}}"
    return f"{{% for m in messages %}}{{{{ {content} }}}}{call};{{% endfor %}}"


OBJECT, JSON = "c.function.arguments | items | list", "'' + c.function.arguments"
RENDERED: dict[str, tuple[str, list[dict[str, Any]], list[dict[str, Any]] | None, str]] = {
    "up to where the answer begins": (TURNS, HELLO, None, "user: Hello.assistant: "),
    "tools and documents are none, not undefined": ("{{ tools is none and documents is none }}", HELLO, None, "True"),
    "empty tools are none": ("{{ tools is none }}", HELLO, [], "True"),
    "tools as they were sent": (EACH_TOOL, HELLO, [TOOL], "add"),
    "a message's name": ("{{ messages[0].name }}", [{**HELLO[0], "name": "Ann"}], None, "Ann"),
    "arguments of calls as objects": (_with_calls("m.content", OBJECT), CALLED, None, "Hello;add([('a', 1)]);"),
    "arguments as text": (_with_calls("m.content", JSON), CALLED, None, 'Hello;add({"a": 1});'),
    "content as null": (
        _with_calls("m.content if m.content is not none else '-'", OBJECT),
        CALLED,
        None,
        "Hello;-add([('a', 1)]);",
    ),
    "null and arguments as text": (
        _with_calls("m.content if m.content is not none else '-'", JSON),
        CALLED,
        None,
        'Hello;-add({"a": 1});',
    ),
    "content as text": (_with_calls("'[' + m.content + ']'", OBJECT), CALLED, None, "[Hello];[]add([('a', 1)]);"),
    # Qwen 3, if the client sends the reasoning of a call back.
    "content with methods of texts": (_with_calls("m.content.strip()", OBJECT), CALLED, None, "Hello;add([('a', 1)]);"),
    "content and arguments as text": (_with_calls("'' + m.content", JSON), CALLED, None, 'Hello;add({"a": 1});'),
    "a developer is the system": ("{{ messages[0].role }}", DEVELOPER, None, "system"),
    "unless the template knows one": (TURNS + "{# developer #}", DEVELOPER, None, "developer: x.assistant: "),
    "tools that are read in a message stay objects": (
        "{% for tool in messages[0].tools %}{{ tool.function.name }}{% endfor %}",
        HELLO,
        [TOOL],
        "add",
    ),
    "a template that reads tools gets none in a message": (
        "{{ tools | length }}{{ messages[0].tools is defined }}",
        HELLO,
        [TOOL],
        "1False",
    ),
}


@pytest.mark.parametrize("case", RENDERED)
def test_template_gets_what_it_can_use(case: str) -> None:
    source, messages, tools, text = RENDERED[case]
    assert _write(source, messages, tools) == text


def test_template_for_tools_is_used_with_tools_and_its_variables_count() -> None:
    sources = {"default": "plain", "tool_use": "{{ tools[0].function.name }}"}
    assert _write(sources, HELLO, [TOOL]) == "add"
    assert _write(sources) == "plain"
    sources = {"default": "plain", "tool_use": "{{ tools }}{{ effort }}"}
    writer = PromptWriter({name: ChatTemplate(source) for name, source in sources.items()})
    assert writer.reads("effort")
    assert not writer.reads("other")
    with pytest.raises(InvalidField) as caught:
        _write(sources, effort=1)
    assert caught.value.param == "chat_template_kwargs"


# templates that support tools only in a message, and no calls

IN_MESSAGE = (
    "{% for m in messages %}{{ m.role + ':' + m.content }}{% if 'tools' in m %}{{ '<' + m['tools'] + '>' }}{% endif %};"
    "{% endfor %}"
)
FUNCTIONS = '[{"name": "add", "parameters": {"type": "object"}}]'
PHI = TOOL_FORMATS["phi4mini"]


def test_tools_are_in_the_system_message_for_such_templates() -> None:
    system = {"role": "system", "content": "Be brief."}
    assert _write(IN_MESSAGE, [system, *HELLO], [TOOL]) == f"system:Be brief.<{FUNCTIONS}>;user:Hello;"
    assert _write(IN_MESSAGE, [system, *HELLO]) == "system:Be brief.;user:Hello;"
    assert _write(IN_MESSAGE, HELLO, [TOOL]) == f"system:<{FUNCTIONS}>;user:Hello;"


def _written(source: str, messages: list[dict[str, Any]], tool_format: ToolFormat = PHI) -> Prompt:
    markers = ["<|tool_call|>", "<|/tool_call|>"]
    return PromptWriter({"default": ChatTemplate(source)}, markers, tool_format).write(messages, None, None).prompt


def test_calls_unknown_to_the_template_are_content_whose_markers_alone_are_special() -> None:
    assert _written(TURNS, CALLED).text == (
        'user: Hello.assistant: <|tool_call|>[{"name": "add", "arguments": {"a": 1}}]<|/tool_call|>.assistant: '
    )
    said = [*HELLO, {"role": "assistant", "content": "So.", "tool_calls": [CALL, CALL]}]
    assert "assistant: So.\n<|tool_call|>[{" in _written(TURNS, said).text
    forged = {**CALL, "function": {"name": "add", "arguments": '{"<|/tool_call|>": "<|tool_call|>"}'}}
    prompt = _written(TURNS, [{"role": "assistant", "content": "<|tool_call|>", "tool_calls": [forged]}])
    assert (prompt.text.count("tool_call|>"), prompt.num_special) == (5, 2)


def test_role_of_results_is_the_templates_or_else_the_formats() -> None:
    result = [*CALLED, {"role": "tool", "tool_call_id": "c1", "content": "1"}]
    assert "tool_response: 1." in _written(TURNS, result).text
    assert "tool: 1." in _written(TURNS, result, TOOL_FORMATS["hermes"]).text
    assert "tool: 1." in _written(TURNS + "{{ 'tool' if false }}", result).text


def test_calls_that_a_template_knows_are_left_to_it() -> None:
    assert _written("{{ messages[1].tool_calls | length }}{{ messages[1].content is none }}", CALLED).text == "1True"


# more variables


def test_more_variables_are_there_for_the_template() -> None:
    assert _write("{{ enable_thinking }} {{ documents[0] }}", enable_thinking=False, documents=["d"]) == "False d"


@pytest.mark.parametrize("name", ["messages", "tools"])
def test_a_variable_that_is_a_field_of_its_own_is_refused(name: str) -> None:
    writer = PromptWriter({"default": ChatTemplate("{{ messages }}{{ tools }}")})
    with pytest.raises(InvalidField, match=f"must not have {name}, a field of the request itself") as caught:
        writer.write(HELLO, None, {name: []})
    assert caught.value.param == "chat_template_kwargs"


def test_texts_among_the_variables_write_no_special_tokens() -> None:
    writer = PromptWriter({"default": ChatTemplate("<s>{{ note.text }}")}, ["<s>"])
    prompt = writer.write(HELLO, None, {"note": {"text": "<s>"}}).prompt
    assert (prompt.text, prompt.num_special) == ("<s><s>", 1)
    assert len(prompt.pieces) == 2


# the end of the prompt


def test_prompt_can_end_after_or_within_the_last_message() -> None:
    assert _write(TURNS, add_generation_prompt=False) == "user: Hello."
    messages = [*HELLO, {"role": "assistant", "content": "Once. "}]
    assert _write(TURNS, messages, continue_final_message=True) == "user: Hello.assistant: Once. "
    trimmed = "{% for m in messages %}{{ m.content | trim }}.{% endfor %}"
    assert _write(trimmed, messages, continue_final_message=True) == "Hello.Once. "


# refusals

LAST = [*HELLO, {"role": "assistant", "content": "x"}]
CALLS_AS_TEXT, WITH_CALLS = TURNS, _with_calls("m.content or ''", OBJECT)
BY_TURNS = "messages are refused by the model's chat template: roles must alternate"
CONTINUE = {"continue_final_message": True}
REFUSED: dict[str, tuple[tuple[Any, ...], dict[str, Any], str, str]] = {
    "by the template": (("{{ raise_exception('roles must alternate') }}",), {}, "messages", f"^{BY_TURNS}$"),
    "by the template for a variable": (
        ("{% if effort == 'vast' %}{{ raise_exception('roles must alternate') }}{% endif %}" + TURNS,),
        {"effort": "vast"},
        "chat_template_kwargs",
        f"^chat_template_kwargs cannot be used: {BY_TURNS}$",
    ),
    "tools that a template does not read": (
        ("{{ messages }}", HELLO, [TOOL]),
        {},
        "tools",
        "^tools are not supported by this model: its chat template does not read them$",
    ),
    "a variable that it does not read": (
        ("{{ messages }}{{ enable_thinking }}{{ effort }}",),
        {"thinking": True},
        "chat_template_kwargs",
        "^chat_template_kwargs has thinking, which the model's chat template does not read; it "
        "reads continue_final_message, effort, enable_thinking$",
    ),
    "another end of a template with a fixed one": (
        ("{{ messages }}",),
        {"add_generation_prompt": False},
        "chat_template_kwargs",
        "^chat_template_kwargs ",
    ),
    "to continue a question": (
        (WITH_CALLS, HELLO),
        CONTINUE,
        "messages",
        "must end with a message of the assistant that has content",
    ),
    **{
        f"to continue calls ({name}, content {content})": (
            (template, [*HELLO, {**CALLED[-1], "content": content}]),
            CONTINUE,
            "messages",
            "must not end with tool calls where continue_final_message is true: a prompt has them",
        )
        for content in (None, "I look")
        for name, template in (("as text", CALLS_AS_TEXT), ("of the template", WITH_CALLS))
    },
    "to continue what the template leaves out": (
        ("{{ messages[0].content }}", LAST),
        CONTINUE,
        "chat_template_kwargs",
        "^chat_template_kwargs ",
    ),
    "two ends of the prompt": (
        (TURNS, LAST),
        {**CONTINUE, "add_generation_prompt": True},
        "chat_template_kwargs",
        "continue_final_message and add_generation_prompt cannot be combined",
    ),
    "an end that is a text": (
        (TURNS, LAST),
        {"continue_final_message": "yes"},
        "chat_template_kwargs",
        'must have true or false as continue_final_message; given "yes"',
    ),
    "an end that is null": (
        (TURNS, LAST),
        {"add_generation_prompt": None},
        "chat_template_kwargs",
        "must have true or false as add_generation_prompt; given null",
    ),
    **{
        f"half a character: {case}": (("{{ messages }}{{ tools }}{{ x }}", *arguments), more, param, f"^{param} ")
        for case, arguments, more, param in (
            ("content", ([{"role": "user", "content": "\ud800"}],), {}, "messages"),
            ("role", ([{"role": "\ud800", "content": ""}],), {}, "messages"),
            ("tools", (HELLO, [{"type": "\udfff"}]), {}, "tools"),
            ("kwargs", (HELLO,), {"x": ["\udb80"]}, "chat_template_kwargs"),
        )
    },
}


@pytest.mark.parametrize("case", REFUSED)
def test_messages_or_variables_are_refused(case: str) -> None:
    arguments, template_kwargs, param, words = REFUSED[case]
    with pytest.raises(InvalidField, match=words) as caught:
        _write(*arguments, **template_kwargs)
    assert caught.value.param == param


def test_history_of_calls_is_text_for_a_model_that_knows_none() -> None:
    result = {"role": "tool", "tool_call_id": "c1", "content": "1"}
    written = PromptWriter({"default": ChatTemplate(TURNS)}).write([*CALLED, result], None, None)
    assert written.text == (
        'user: Hello.assistant: [tool call: add {"a": 1}].user: [result of the tool add]\n1.assistant: '
    )
    assert list(map("".join, written.converted)) == [
        "messages[1].tool_calls (as text)",
        "messages[2] (as text of the user)",
    ]


def test_conversation_that_the_template_still_refuses_becomes_texts_by_turns() -> None:
    refuses_first = (
        "{% if messages[0].role == 'user' and messages[1:] and messages[1].tool_calls and messages | length == 2 %}"
    )
    source = refuses_first + "{{ raise_exception('no') }}{% endif %}" + _with_calls("m.content or ''", OBJECT)
    writer = PromptWriter({"default": ChatTemplate(source)})
    written = writer.write(CALLED, None, None)
    assert written.text == 'Hello;[tool call: add {"a": 1}];'
    assert list(map("".join, written.converted)) == ["messages[1].tool_calls (as text)"]


def test_reasoning_that_is_not_in_the_prompt_is_named() -> None:
    source = "{% for m in messages %}{{ m.thinking if keep or loop.last }}{{ m.content }};{% endfor %}"
    writer = PromptWriter({"default": ChatTemplate(source)}, ["<s>"])
    said = [{"role": "assistant", "content": str(n), "reasoning_content": f"<s> I think {n}"} for n in range(300)]
    written = writer.write([*HELLO, *said], None, None)
    assert written.text.endswith(";298;<s> I think 299299;")
    (left_out,) = written.left_out
    assert left_out == ("messages[1].reasoning_content", " and 298 more (the chat template writes none there)")
    kept = writer.write([*HELLO, *said], None, {"keep": True})
    assert kept.left_out == ()
    assert kept.text == "Hello;" + "".join(f"<s> I think {n}{n};" for n in range(300))
