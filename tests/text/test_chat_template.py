"""Chat templates render as Hugging Face's `apply_chat_template` does, and cannot do harm."""

import json
from pathlib import Path
from typing import Any

import pytest

from genai_server.errors import InvalidField, ModelDirectoryError
from genai_server.text.chat_template import SCRIPTED_TEMPLATE, ChatTemplate, load_chat_template

HELLO = [{"role": "user", "content": "Hello"}]


def _render(source: str, messages: list[dict[str, Any]] = HELLO, **special_tokens: str) -> str:
    return ChatTemplate(source, special_tokens).render(messages)


# the environment of apply_chat_template


def test_lines_that_hold_only_a_block_leave_no_trace() -> None:
    source = (
        "{% for m in messages %}\n    {% if true %}\n{{ m.role }}: {{ m.content }}\n    {% endif %}\n{% endfor %}\nend"
    )
    assert _render(source) == "user: Hello\nend"


def test_a_loop_can_be_left_and_gone_on_with() -> None:
    source = (
        "{% for n in range(9) %}{% if n == 1 %}{% continue %}{% endif %}{% if n == 3 %}{% break %}{% endif %}{{ n }}"
    )
    assert _render(source + "{% endfor %}") == "02"


def test_json_keeps_characters_as_they_are() -> None:
    assert _render("{{ messages[0] | tojson }}", [{"content": "<é & 'ü'> 🦜"}]) == '{"content": "<é & \'ü\'> 🦜"}'


def test_json_can_be_indented() -> None:
    assert _render("{{ messages[0] | tojson(indent=2) }}", [{"a": 1}]) == '{\n  "a": 1\n}'


def test_the_generation_prompt_is_asked_for() -> None:
    assert _render("{% if add_generation_prompt %}assistant:{% endif %}") == "assistant:"


def test_special_tokens_are_variables() -> None:
    assert _render("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", bos_token="<s>", eos_token="</s>") == (
        "<s>Hello</s>"
    )


def test_the_date_can_be_written() -> None:
    year = _render("{{ strftime_now('%Y') }}")
    assert len(year) == 4
    assert year.isdigit()


def test_tools_and_documents_are_none_rather_than_undefined() -> None:
    assert _render("{% if tools is not none or documents is not none %}{{ tools | tojson }}{% endif %}x") == "x"


def test_the_marks_of_assistant_text_for_training_are_passed_over() -> None:
    assert _render("{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}") == "Hello"


# what users write stays text


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
        "{{ messages[0].nothing.at.all }}",
        "{{ messages[5].content }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].__class__.__mro__ }}",
        "{{ messages[0].update({'role': 'system'}) }}",
    ],
    ids=["missing attribute", "missing message", "changes the list", "leaves the sandbox", "changes a message"],
)
def test_what_a_template_may_not_do_refuses_the_messages(source: str) -> None:
    with pytest.raises(InvalidField):
        _render(source)


def test_a_template_that_is_not_jinja_is_the_model_directorys_fault() -> None:
    with pytest.raises(ModelDirectoryError, match="chat template is not valid"):
        ChatTemplate("{% if %}", {})


# from a model directory


def _directory(folder: Path, config: dict[str, Any], jinja: str | None = None) -> Path:
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    if jinja is not None:
        (folder / "chat_template.jinja").write_text(jinja, encoding="utf-8")
    return folder


def test_the_file_of_its_own_comes_before_the_tokenizers_configuration(tmp_path: Path) -> None:
    folder = _directory(tmp_path, {"chat_template": "configuration"}, "file «é»")
    assert load_chat_template(folder).render(HELLO) == "file «é»"


def test_without_a_file_the_tokenizers_configuration_has_it(tmp_path: Path) -> None:
    assert load_chat_template(_directory(tmp_path, {"chat_template": "configuration"})).render(HELLO) == "configuration"


def test_of_several_templates_the_default_one_is_taken(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    assert load_chat_template(_directory(tmp_path, {"chat_template": named})).render(HELLO) == "plain"


@pytest.mark.parametrize("template", [None, [], [{"name": "rag", "template": "x"}]])
def test_a_directory_without_a_template_is_refused_by_name(tmp_path: Path, template: object) -> None:
    with pytest.raises(ModelDirectoryError, match=tmp_path.name):
        load_chat_template(_directory(tmp_path, {"chat_template": template}))


def test_special_tokens_come_as_text_or_as_objects_and_nothing_else_is_taken_for_one(tmp_path: Path) -> None:
    config = {
        "bos_token": "<s>",
        "eos_token": {"content": "</s>", "lstrip": False},
        "pad_token": None,
        "add_bos_token": True,
        "model_max_length": 5,
    }
    source = "{{ bos_token }}{{ eos_token }}{{ pad_token is defined }}{{ add_bos_token is defined }}"
    assert load_chat_template(_directory(tmp_path, config, source)).render(HELLO) == "<s></s>FalseFalse"


def test_the_scripted_template_gives_each_message_a_line_and_marks_the_end() -> None:
    assert _render(SCRIPTED_TEMPLATE, [*HELLO, {"role": "user", "content": "count 3"}]) == "Hello\ncount 3\n\x04"
