"""Chat templates render like Hugging Face's `apply_chat_template`, and cannot do harm."""

import re
from typing import Any

import pytest

from genai_server.errors import InvalidField, ModelDirectoryError
from genai_server.text.prompts.chat_template import SCRIPTED_TEMPLATE, ChatTemplate, TemplateRefusal

HELLO = [{"role": "user", "content": "Hello"}]


def _render(source: str, messages: list[dict[str, Any]] = HELLO, **special_tokens: str) -> str:
    return ChatTemplate(source, special_tokens).render({"messages": messages})


RENDERED: dict[str, tuple[str, list[dict[str, Any]], str]] = {
    "lines with only a block leave no trace": (
        "{% for m in messages %}\n    {% if true %}\n{{ m.role }}: {{ m.content }}\n    {% endif %}\n{% endfor %}\nend",
        HELLO,
        "user: Hello\nend",
    ),
    "loops have break and continue": (
        "{% for n in range(9) %}{% if n == 1 %}{% continue %}{% endif %}{% if n == 3 %}{% break %}{% endif %}{{ n }}"
        "{% endfor %}",
        HELLO,
        "02",
    ),
    "JSON keeps characters": (
        "{{ messages[0] | tojson }}",
        [{"content": "<é & 'ü'> 🦜"}],
        '{"content": "<é & \'ü\'> 🦜"}',
    ),
    "JSON can be indented": ("{{ messages[0] | tojson(indent=2) }}", [{"a": 1}], '{\n  "a": 1\n}'),
    "JSON can be in ASCII and sorted": (
        "{{ messages[0] | tojson(ensure_ascii=true, sort_keys=true, separators=(',', ':')) }}",
        [{"b": "é🦜", "a": 1}],
        r'{"a":1,"b":"\u00e9\ud83e\udd9c"}',
    ),
    "special tokens are variables": ("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", HELLO, "<s>Hello</s>"),
    "generation markers for training are ignored": (
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
        HELLO,
        "Hello",
    ),
    "the scripted template has a line per message and an end": (
        SCRIPTED_TEMPLATE,
        [*HELLO, {"role": "user", "content": "count 3"}],
        "Hello\ncount 3\n\x04",
    ),
}


@pytest.mark.parametrize("case", RENDERED)
def test_template_renders_as_apply_chat_template(case: str) -> None:
    source, messages, text = RENDERED[case]
    assert _render(source, messages, bos_token="<s>", eos_token="</s>") == text


def test_the_date_can_be_written() -> None:
    assert re.fullmatch(r"\d{4}", _render("{{ strftime_now('%Y') }}"))


# user text stays text


@pytest.mark.parametrize("content", ["{{ 7 * 7 }}", "{% raw %}", "<b>&amp;</b>", "line\r\nline\n", ""])
def test_the_content_of_a_message_is_not_interpreted(content: str) -> None:
    assert _render("[{{ messages[0].content }}]", [{"content": content}]) == f"[{content}]"


# refusals


def test_a_template_can_refuse_messages_with_a_reason() -> None:
    with pytest.raises(InvalidField, match="roles must alternate") as caught:
        _render("{{ raise_exception('roles must alternate') }}")
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    [
        # changes
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'system'}) }}",
        # Python's internals
        "{{ messages[0].__class__.__mro__ }}",
        "{{ ''.__class__.x }}",
        "{{ range.__globals__.x }}",
        # takes too long
        "{% for n in range(10**9) %}{% endfor %}",
    ],
)
def test_invalid_operation_of_a_template_refuses_the_messages(source: str) -> None:
    with pytest.raises(InvalidField):
        _render(source)


def test_invalid_template_is_an_error_of_the_model_directory() -> None:
    with pytest.raises(ModelDirectoryError, match="chat template is not valid"):
        ChatTemplate("{% if %}", {})


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' + messages[0].content }}",
        "{{ messages[0].content.strip() }}",
        "{{ messages[0].content[0].type }}",
        "{{ messages[0].nothing.at.all }}",
        "{{ messages[5].content }}",
        "{{ lipsum() }}",
    ],
)
def test_value_without_what_is_read_is_a_refusal(source: str) -> None:
    with pytest.raises(TemplateRefusal, match="messages are refused by the model's chat template: ."):
        _render(source, [{"content": None}])


def test_a_text_that_grows_too_long_is_refused_while_it_is_made() -> None:
    template = ChatTemplate("{% for n in range(100000) %}{{ messages[0].content }}{% endfor %}", max_characters=99)
    with pytest.raises(InvalidField, match="the prompt has more than 99 characters") as caught:
        template.render({"messages": HELLO})
    assert not isinstance(caught.value, TemplateRefusal)  # another form would not help
    assert len(ChatTemplate("{{ 'x' * 99 }}", max_characters=99).render({})) == 99


# properties of a template


@pytest.mark.parametrize(
    ("source", "variables"),
    [
        ("{{ bos_token }}{% for m in messages %}{{ m.name }}{{ loop.index }}{% endfor %}", {"messages"}),
        ("{% if enable_thinking is defined and not enable_thinking %}x{% endif %}", {"enable_thinking"}),
        ("{% if not date is defined %}{% set date = 'today' %}{% endif %}{{ date }}", {"date"}),
        ("{% set effort = effort or 'high' %}{{ effort }}", {"effort"}),
        ("{% set effort | trim %}{{ given }}{% endset %}{{ effort }}", {"given"}),
        ("{% if tools %}{% set text = 'a' %}{% endif %}{{ text }}", {"tools"}),
        ("{% if custom is defined %}{% set tools = custom %}{% endif %}{{ tools }}", {"custom", "tools"}),
        ("{% macro show(x) %}{{ x }}{{ y }}{% endmacro %}{{ show(z) }}", {"y", "z"}),
        ("{% set ns = namespace(a=1) %}{% set ns.a = b %}{{ raise_exception(strftime_now('%Y')) }}", {"b"}),
    ],
)
def test_external_variables_of_a_template_are_known(source: str, variables: set[str]) -> None:
    assert ChatTemplate(source, {"bos_token": "<s>"}).variables == variables


def test_texts_in_a_template_and_its_lists_are_known() -> None:
    template = ChatTemplate("one{% if messages == 'two' %}{{ 3 ~ 'four' }}{% endif %}{# five #}")
    assert template.constants == {"one", "two", "four"}
    template = ChatTemplate("{% if kind in ['image', 'image_url'] %}{{ '[IMG]' }}{% endif %}tail")
    assert template.constants == {"image", "image_url", "[IMG]", "tail"}


@pytest.mark.parametrize(
    ("source", "takes", "of_messages"),
    [
        ("{% for tool in tools %}{{ tool }}{% endfor %}", True, False),
        ("{% for m in messages %}{{ m['tools'] }}{% endfor %}", True, True),
        ("{{ messages[0].tools }}", True, True),
        ("{{ messages }} tools {# tools #}", False, False),
    ],
)
def test_template_shows_where_it_reads_tools(source: str, takes: bool, of_messages: bool) -> None:
    template = ChatTemplate(source)
    assert (template.takes_tools, "tools" in template.fields) == (takes, of_messages)
