"""Images in the chat templates of vision models.

The templates are short, but read contents like the families' own and write the same markers.
"""

from typing import Any

import pytest

from genai_server.errors import InvalidField
from genai_server.text.prompts.chat_template import ChatTemplate
from genai_server.text.prompts.prompt import PromptWriter
from genai_server.text.prompts.special_tokens import Prompt

_LOOP = "{% for m in messages %}"
_END = "{% endfor %}{% if add_generation_prompt %}"
# Template, special tokens, marker of an image, and the prompt of `look` between two images.
FAMILIES: dict[str, tuple[str, list[str], str, str]] = {
    "qwen2-vl": (
        "{% set image_count = namespace(value=0) %}"
        + _LOOP
        + "<|im_start|>{{ m['role'] }}\n{% if m['content'] is string %}{{ m['content'] }}<|im_end|>\n{% else %}"
        + "{% for content in m['content'] %}"
        + "{% if content['type'] == 'image' or 'image' in content or 'image_url' in content %}"
        + "{% set image_count.value = image_count.value + 1 %}"
        + "{% if add_vision_id %}Picture {{ image_count.value }}: {% endif %}"
        + "<|vision_start|><|image_pad|><|vision_end|>"
        + "{% elif content['type'] == 'video' or 'video' in content %}<|vision_start|><|video_pad|><|vision_end|>"
        + "{% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endif %}"
        + _END
        + "<|im_start|>assistant\n{% endif %}",
        ["<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"],
        "<|vision_start|><|image_pad|><|vision_end|>",
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>look<|vision_start|><|image_pad|><|vision_end|>"
        "<|im_end|>\n<|im_start|>assistant\n",
    ),
    "qwen3-vl": (
        "{% macro render(content) %}{% if content is string %}{{ content }}{% else %}{% for item in content %}"
        "{% if 'image' in item or 'image_url' in item or item.type == 'image' %}"
        "{{- '<|vision_start|><|image_pad|><|vision_end|>' }}"
        "{% elif 'text' in item %}{{ item.text }}{% endif %}{% endfor %}{% endif %}{% endmacro %}"
        + _LOOP
        + "{% if m.role == 'tool' %}"
        + "{{- '<|im_start|>user\n<tool_response>\n' + render(m.content) + '\n</tool_response>' }}"
        + "{% else %}{{- '<|im_start|>' + m.role + '\n' + render(m.content) }}{% endif %}{{- '<|im_end|>\n' }}"
        + _END
        + "{{- '<|im_start|>assistant\n' }}{% endif %}",
        ["<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|endoftext|>"],
        "<|vision_start|><|image_pad|><|vision_end|>",
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>look<|vision_start|><|image_pad|><|vision_end|>"
        "<|im_end|>\n<|im_start|>assistant\n",
    ),
    "gemma3": (
        "{{ bos_token }}"
        + _LOOP
        + "{% set role = 'model' if m['role'] == 'assistant' else m['role'] %}{{ '<start_of_turn>' + role + '\n' }}"
        + "{% if m['content'] is string %}{{ m['content'] | trim }}{% elif m['content'] is iterable %}"
        + "{% for item in m['content'] %}{% if item['type'] == 'image' %}{{ '<start_of_image>' }}"
        + "{% elif item['type'] == 'text' %}{{ item['text'] | trim }}{% endif %}{% endfor %}"
        + "{% else %}{{ raise_exception('Invalid content type') }}{% endif %}{{ '<end_of_turn>\n' }}"
        + _END
        + "{{ '<start_of_turn>model\n' }}{% endif %}",
        ["<bos>", "<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<end_of_image>", "<image_soft_token>"],
        "<start_of_image>",
        "<bos><start_of_turn>user\n<start_of_image>look<start_of_image><end_of_turn>\n<start_of_turn>model\n",
    ),
    "mistral3": (
        "{{ bos_token }}"
        + _LOOP
        + "{% if m['role'] == 'user' %}{% if m['content'] is string %}{{ '[INST]' + m['content'] + '[/INST]' }}"
        + "{% else %}{{ '[INST]' }}{% for block in m['content'] %}{% if block['type'] == 'text' %}{{ block['text'] }}"
        + "{% elif block['type'] in ['image', 'image_url'] %}{{ '[IMG]' }}"
        + "{% else %}{{ raise_exception('Only text and image blocks are supported') }}{% endif %}{% endfor %}"
        + "{{ '[/INST]' }}{% endif %}{% else %}{{ m['content'] }}{% endif %}{% endfor %}",
        ["<bos>", "[INST]", "[/INST]", "[IMG]", "[IMG_BREAK]", "[IMG_END]"],
        "[IMG]",
        "<bos>[INST][IMG]look[IMG][/INST]",
    ),
    "lfm2-vl": (
        "{{ bos_token }}"
        + _LOOP
        + "{{ '<|im_start|>' + m['role'] + '\n' }}{% if m['content'] is string %}{{ m['content'] }}{% else %}"
        + "{% for content in m['content'] %}{% if content['type'] == 'image' %}{{ '<image>' }}"
        + "{% elif content['type'] == 'text' %}{{ content['text'] }}{% endif %}{% endfor %}{% endif %}"
        + "{{ '<|im_end|>\n' }}"
        + _END
        + "{{ '<|im_start|>assistant\n' }}{% endif %}",
        ["<bos>", "<|im_start|>", "<|im_end|>", "<image>", "<|img_row_1_col_1|>", "<|image_start|>", "<|image_end|>"],
        "<image>",
        "<bos><|im_start|>user\n<image>look<image><|im_end|>\n<|im_start|>assistant\n",
    ),
    # Takes only texts, and builds its tokens of the role.
    "phi-4-multimodal": (
        _LOOP + "{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}" + _END + "{{ '<|assistant|>' }}{% endif %}",
        ["<|user|>", "<|assistant|>", "<|end|>", "<|endoftext10|>", "<|endoftext|>"],
        "<|endoftext10|>",
        "<|user|><|endoftext10|>\nlook\n<|endoftext10|><|end|><|assistant|>",
    ),
    # Builds its tokens of the role, and takes parts.
    "parts and roles": (
        _LOOP
        + "{{ '<|' + m.role + '|>' }}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
        + "{% if p.type == 'image' %}{{ '<|image|>' }}{% elif p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}"
        + "{% endif %}{{ '<|end|>' }}"
        + _END
        + "{{ '<|assistant|>' }}{% endif %}{{ '<call> <result> <tools>' if tools }}",
        ["<|user|>", "<|assistant|>", "<|end|>", "<|image|>", "<|endoftext|>"],
        "<|image|>",
        "<|user|><|image|>look<|image|><|end|><|assistant|>",
    ),
}
IMAGE = {"type": "image"}


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _write(family: str, *messages: dict[str, Any], **kwargs: Any) -> Prompt:
    source, tokens, marker, _ = FAMILIES[family]
    template = ChatTemplate(source, {"bos_token": "<bos>"})
    return PromptWriter({"default": template}, tokens, image_marker=marker).write(messages, None, kwargs).prompt


def _user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


@pytest.mark.parametrize("family", FAMILIES)
def test_each_image_has_its_marker_in_its_place_and_texts_are_one(family: str) -> None:
    assert _write(family, _user(IMAGE, _text("look"), IMAGE)).text == FAMILIES[family][-1]
    assert _write(family, _user(_text("a"), _text("b"))) == _write(family, {"role": "user", "content": "a\nb"})
    prompt = _write(
        family, _user(IMAGE, _text("a")), {"role": "assistant", "content": "b"}, _user(_text("c"), IMAGE, IMAGE)
    )
    assert prompt.text.count(FAMILIES[family][2]) == 3


@pytest.mark.parametrize("family", FAMILIES)
def test_typed_markers_stay_text_next_to_an_image(family: str) -> None:
    tokens = FAMILIES[family][1]
    typed, plain = (_write(family, _user(IMAGE, _text(text))) for text in (f"a {''.join(tokens)} z", "a z"))
    assert "".join(tokens) in typed.text
    assert typed.num_special == plain.num_special
    genuine, expected = ([sum(p.count(token) for p in one.pieces) for token in tokens] for one in (typed, plain))
    assert genuine == expected


def test_images_are_in_results_and_numbered_where_the_template_does() -> None:
    prompt = _write("qwen3-vl", {"role": "tool", "content": [_text("seen: "), IMAGE]})
    assert "<tool_response>\nseen: <|vision_start|><|image_pad|><|vision_end|>\n</tool_response>" in prompt.text
    prompt = _write("qwen2-vl", _user(IMAGE, IMAGE), add_vision_id=True)
    assert "Picture 1: <|vision_start|><|image_pad|><|vision_end|>Picture 2: <|vision_start|>" in prompt.text


def test_a_model_for_texts_has_no_place_for_an_image() -> None:
    writer = PromptWriter({"default": ChatTemplate(FAMILIES["qwen3-vl"][0])})
    with pytest.raises(InvalidField) as caught:
        writer.write([_user(_text("a"), IMAGE)], None, None)
    assert caught.value.param == "messages[0].content[1]"
