"""The chat templates of a model directory are found where Hugging Face's libraries put them."""

import json
from pathlib import Path
from typing import Any

import pytest

from genai_server.errors import InvalidField, ModelDirectoryError
from genai_server.text.template_files import load_chat_templates


def _directory(folder: Path, config: dict[str, Any], **files: str) -> Path:
    """A model directory with this configuration; `chat_template` is a file of its own, others are additional."""
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "additional_chat_templates").mkdir()
    for name, source in files.items():
        place = folder if name == "chat_template" else folder / "additional_chat_templates"
        (place / f"{name}.jinja").write_text(source, encoding="utf-8")
    return folder


def _rendered(folder: Path) -> dict[str, str]:
    return {name: template.render({}) for name, template in load_chat_templates(folder).items()}


def test_files_come_before_the_tokenizers_configuration(tmp_path: Path) -> None:
    folder = _directory(tmp_path, {"chat_template": "configuration"}, chat_template="file «é»", tool_use="tools")
    assert _rendered(folder) == {"default": "file «é»", "tool_use": "tools"}


def test_without_files_the_tokenizers_configuration_has_the_template(tmp_path: Path) -> None:
    assert _rendered(_directory(tmp_path, {"chat_template": "configuration"})) == {"default": "configuration"}


def test_the_tokenizers_configuration_can_have_several_templates(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    assert _rendered(_directory(tmp_path, {"chat_template": named})) == {"default": "plain", "tool_use": "tools"}


@pytest.mark.parametrize("template", [None, [], [{"name": "rag", "template": "x"}]])
def test_a_directory_without_a_default_template_is_refused_by_name(tmp_path: Path, template: object) -> None:
    with pytest.raises(ModelDirectoryError, match=tmp_path.name):
        load_chat_templates(_directory(tmp_path, {"chat_template": template}))


def test_special_tokens_come_as_text_or_as_objects_and_nothing_else_is_taken_for_one(tmp_path: Path) -> None:
    config = {
        "bos_token": "<s>",
        "eos_token": {"content": "</s>", "lstrip": False},
        "pad_token": None,
        "add_bos_token": True,
        "model_max_length": 5,
    }
    source = "{{ bos_token }}{{ eos_token }}{{ pad_token is defined }}{{ add_bos_token is defined }}"
    assert _rendered(_directory(tmp_path, config, chat_template=source)) == {"default": "<s></s>FalseFalse"}


def test_the_limit_of_a_prompt_holds_for_each(tmp_path: Path) -> None:
    folder = _directory(tmp_path, {}, chat_template="short", tool_use="longer")
    templates = load_chat_templates(folder, max_characters=5)
    assert templates["default"].render({}) == "short"
    with pytest.raises(InvalidField, match="more than 5 characters"):
        templates["tool_use"].render({})


@pytest.mark.parametrize(
    "value", [5, True, [5], [{}], [{"name": "default"}], [{"name": "default", "template": 5}], {"default": "x"}]
)
def test_what_can_be_no_template_is_refused_with_its_file(tmp_path: Path, value: object) -> None:
    with pytest.raises(ModelDirectoryError, match="chat_template in .*tokenizer_config.json must be a text, or a list"):
        load_chat_templates(_directory(tmp_path, {"chat_template": value}))


def test_a_template_that_is_no_utf_8_is_refused_with_its_name(tmp_path: Path) -> None:
    folder = _directory(tmp_path, {}, chat_template="x")
    (folder / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ModelDirectoryError, match="chat_template.jinja cannot be read"):
        load_chat_templates(folder)
