"""The chat templates of a model directory are found where Hugging Face's libraries save them."""

import json
from pathlib import Path
from typing import Any

import pytest

from genai_server.errors import ChatTemplateError, InvalidField, ModelDirectoryError
from genai_server.text.prompts.chat_template import NAMES, load_chat_templates
from genai_server.text.prompts.prompt import PromptWriter
from genai_server.text.tool_formats.all_formats import PLAIN, read_dialect


def _directory(folder: Path, config: dict[str, Any], **files: str) -> Path:
    """A model directory with this configuration; `chat_template` is a separate file, others are more templates."""
    (folder / "additional_chat_templates").mkdir(parents=True)
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    for name, source in files.items():
        place = folder if name == "chat_template" else folder / "additional_chat_templates"
        (place / f"{name}.jinja").write_text(source, encoding="utf-8")
    return folder


def _rendered(folder: Path) -> dict[str, str]:
    return {name: template.render({}) for name, template in load_chat_templates(folder).items()}


SEVERAL = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]


@pytest.mark.parametrize(
    ("configured", "files", "rendered"),
    [
        (
            "configuration",
            {"chat_template": "file «é»", "tool_use": "tools"},
            {"default": "file «é»", "tool_use": "tools"},
        ),
        ("configuration", {}, {"default": "configuration"}),
        (SEVERAL, {}, {"default": "plain", "tool_use": "tools"}),
        *((without, {}, {}) for without in (None, [], [{"name": "rag", "template": "x"}])),
    ],
)
def test_files_come_before_the_tokenizers_configuration(
    tmp_path: Path, configured: object, files: dict[str, str], rendered: dict[str, str]
) -> None:
    assert _rendered(_directory(tmp_path, {"chat_template": configured}, **files)) == rendered


def test_a_given_file_comes_before_the_models_own(tmp_path: Path) -> None:
    folder = _directory(tmp_path, {"eos_token": "</s>"}, chat_template="{% broken", tool_use="tools")
    given = tmp_path / "given.jinja"
    given.write_text("given{{ eos_token }}", encoding="utf-8")
    found = load_chat_templates(folder, str(given))
    assert {name: template.render({}) for name, template in found.items()} == {"default": "given</s>"}


@pytest.mark.parametrize(
    ("name", "source", "message"),
    [
        ("chatmll", None, "chatmll: no such file, and no chat template with this name; known names: alpaca, chatml,"),
        ("own.jinja", "{% for %}", "own.jinja: the model's chat template is not valid"),
    ],
)
def test_a_given_template_that_cannot_be_used_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, source: str | None, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if source is not None:
        Path(name).write_text(source, encoding="utf-8")
    with pytest.raises(ChatTemplateError, match=message):
        load_chat_templates(_directory(tmp_path, {}), name)


SYSTEM = {"role": "system", "content": "S"}
TURNS = [{"role": "user", "content": "U1"}, {"role": "assistant", "content": "A1"}, {"role": "user", "content": "U2"}]
# The formats in their makers' descriptions, with and without a system message.
PROMPTS = {
    "alpaca": (
        "<s>S\n\n### Instruction:\nU1\n\n### Response:\nA1</s>\n\n### Instruction:\nU2\n\n### Response:\n",
        "<s>Below is an instruction that describes a task. Write a response that appropriately completes the request."
        "\n\n### Instruction:\nU1\n\n### Response:\nA1</s>\n\n### Instruction:\nU2\n\n### Response:\n",
    ),
    "chatml": (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU1<|im_end|>\n<|im_start|>assistant\nA1<|im_end|>\n"
        "<|im_start|>user\nU2<|im_end|>\n<|im_start|>assistant\n",
        "<|im_start|>user\nU1<|im_end|>\n<|im_start|>assistant\nA1<|im_end|>\n"
        "<|im_start|>user\nU2<|im_end|>\n<|im_start|>assistant\n",
    ),
    "gemma": (
        "<s><start_of_turn>user\nS\n\nU1<end_of_turn>\n<start_of_turn>model\nA1<end_of_turn>\n"
        "<start_of_turn>user\nU2<end_of_turn>\n<start_of_turn>model\n",
        "<s><start_of_turn>user\nU1<end_of_turn>\n<start_of_turn>model\nA1<end_of_turn>\n"
        "<start_of_turn>user\nU2<end_of_turn>\n<start_of_turn>model\n",
    ),
    "llama2": (
        "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nU1 [/INST] A1 </s><s>[INST] U2 [/INST]",
        "<s>[INST] U1 [/INST] A1 </s><s>[INST] U2 [/INST]",
    ),
    "llama3": (
        "<s><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"
        "U1<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nA1<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nU2<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        "<s><|start_header_id|>user<|end_header_id|>\n\nU1<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
        "A1<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nU2<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "mistral": ("<s>[INST] S\n\nU1 [/INST] A1</s>[INST] U2 [/INST]", "<s>[INST] U1 [/INST] A1</s>[INST] U2 [/INST]"),
    "phi-2": (
        "S\n\nInstruct: U1\nOutput: A1\nInstruct: U2\nOutput:",
        "Instruct: U1\nOutput: A1\nInstruct: U2\nOutput:",
    ),
    "phi-3": (
        "<|system|>\nS<|end|>\n<|user|>\nU1<|end|>\n<|assistant|>\nA1<|end|>\n<|user|>\nU2<|end|>\n<|assistant|>\n",
        "<|user|>\nU1<|end|>\n<|assistant|>\nA1<|end|>\n<|user|>\nU2<|end|>\n<|assistant|>\n",
    ),
    "vicuna": (
        "<s>S USER: U1 ASSISTANT: A1</s>USER: U2 ASSISTANT:",
        "<s>A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, "
        "detailed, and polite answers to the user's questions. USER: U1 ASSISTANT: A1</s>USER: U2 ASSISTANT:",
    ),
    "zephyr": (
        "<|system|>\nS</s>\n<|user|>\nU1</s>\n<|assistant|>\nA1</s>\n<|user|>\nU2</s>\n<|assistant|>\n",
        "<|user|>\nU1</s>\n<|assistant|>\nA1</s>\n<|user|>\nU2</s>\n<|assistant|>\n",
    ),
}
ALTERNATING = ("alpaca", "gemma", "llama2", "mistral", "phi-2", "vicuna")


def _writer(folder: Path, name: str, **tokens: str) -> PromptWriter:
    return PromptWriter(load_chat_templates(_directory(folder, dict(tokens)), name))


@pytest.mark.parametrize("name", NAMES)
def test_a_known_template_writes_its_models_prompts_and_promises_neither_tools_nor_reasoning(
    tmp_path: Path, name: str
) -> None:
    writer = _writer(tmp_path / "whole", name, bos_token="<s>", eos_token="</s>")
    found = writer.write([SYSTEM, *TURNS], None, None).text, writer.write(TURNS, None, None).text
    assert found == PROMPTS[name]
    assert writer.write(TURNS[:2], None, {"continue_final_message": True}).text.endswith("A1")
    # Tokens that the tokenizer lacks are omitted.
    expected = PROMPTS[name][0].replace("<s>", "").replace("</s>", "")
    assert _writer(tmp_path / "bare", name).write([SYSTEM, *TURNS], None, None).text == expected
    (template,) = load_chat_templates(_directory(tmp_path, {}), name).values()
    assert not template.takes_tools
    assert read_dialect(template.source) == PLAIN


@pytest.mark.parametrize("name", ALTERNATING)
def test_neighbours_of_one_role_are_joined_for_alternating_formats(tmp_path: Path, name: str) -> None:
    writer = _writer(tmp_path, name)
    written = writer.write([{"role": "user", "content": text} for text in ("one", "two")], None, None)
    assert written.text == writer.write([{"role": "user", "content": "one\n\ntwo"}], None, None).text
    assert written.converted == (("messages[1]", " (joined with the message before it)"),)


def test_special_tokens_are_read_from_texts_and_objects_only(tmp_path: Path) -> None:
    tokens = {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}, "pad_token": None}
    source = "{{ bos_token }}{{ eos_token }}{{ pad_token is defined }}{{ add_bos_token is defined }}"
    folder = _directory(tmp_path, {**tokens, "add_bos_token": True, "model_max_length": 5}, chat_template=source)
    assert _rendered(folder) == {"default": "<s></s>FalseFalse"}


def test_the_limit_of_a_prompt_holds_for_each(tmp_path: Path) -> None:
    folder = _directory(tmp_path, {}, chat_template="short", tool_use="longer")
    templates = load_chat_templates(folder, max_characters=5)
    assert templates["default"].render({}) == "short"
    with pytest.raises(InvalidField, match="more than 5 characters"):
        templates["tool_use"].render({})


@pytest.mark.parametrize(
    "value", [5, True, [5], [{}], [{"name": "default"}], [{"name": "default", "template": 5}], {"default": "x"}]
)
def test_invalid_template_value_is_refused_with_its_file(tmp_path: Path, value: object) -> None:
    with pytest.raises(ModelDirectoryError, match="chat_template in .*tokenizer_config.json must be a text, or a list"):
        load_chat_templates(_directory(tmp_path, {"chat_template": value}))


def test_template_that_is_not_utf8_is_refused_by_name(tmp_path: Path) -> None:
    folder = _directory(tmp_path, {}, chat_template="x")
    (folder / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ModelDirectoryError, match="chat_template.jinja cannot be read"):
        load_chat_templates(folder)
