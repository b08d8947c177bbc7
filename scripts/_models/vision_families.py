"""Models for images with random weights: their decoders are built like those of text models.

Imported, it needs nothing but the standard library.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from _models.families import FAMILIES
from _models.family import TURN_END, Family
from _models.newer_families import NEWER

QWEN_MARKS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
# As Qwen's own: parts of a message are texts and images, and each image becomes one <|image_pad|>.
QWEN_TEMPLATE = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.content is string %}
        {{- message.content }}
    {%- else %}
        {%- for part in message.content %}
            {%- if part.type == 'image' or 'image' in part or 'image_url' in part %}
                {{- '<|vision_start|><|image_pad|><|vision_end|>' }}
            {%- elif 'text' in part %}
                {{- part.text }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


@dataclass(frozen=True)
class VisionFamily:
    """A text model that is built without its embeddings, and the type that onnxruntime-genai knows the whole by.

    An image is scaled to between `min_pixels` and `max_pixels`; each 32x32 pixels become one token.
    """

    text: Family
    kind: str
    min_pixels: int = 64 * 64
    max_pixels: int = 256 * 256


def qwen(name: str, kind: str) -> VisionFamily:
    """Qwen's layout with the decoder of a family for text."""
    family = NEWER[name]
    assert family.outer is not None
    first = TURN_END + 1
    tokens = ("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id")
    outer = family.outer | {token: first + at for at, token in enumerate(tokens)}
    options = (*family.options, "exclude_embeds=true")
    return VisionFamily(replace(family, options=options, outer=outer, marks=QWEN_MARKS, template=QWEN_TEMPLATE), kind)


MISTRAL_MARKS = ("[IMG]", "[IMG_BREAK]", "[IMG_END]", "[INST]", "[/INST]")
MISTRAL_TEMPLATE = """\
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- message.content + '<|im_end|>' }}
    {%- else %}
        {{- '[INST]' }}
        {%- if message.content is string %}
            {{- message.content }}
        {%- else %}
            {%- for part in message.content %}
                {{- '[IMG]' if part.type in ('image', 'image_url') else part.text }}
            {%- endfor %}
        {%- endif %}
        {{- '[/INST]' }}
    {%- endif %}
{%- endfor %}
"""


def mistral(name: str, kind: str) -> VisionFamily:
    """Mistral 3's layout with the decoder of a family for text."""
    family = NEWER[name]
    assert family.outer is not None
    outer = family.outer | {"image_token_index": TURN_END + 1}
    options = (*family.options, "exclude_embeds=true")
    text = replace(family, options=options, outer=outer, marks=MISTRAL_MARKS, template=MISTRAL_TEMPLATE)
    return VisionFamily(text, kind)


GEMMA_MARKS = ("<start_of_image>", "<image_soft_token>", "<end_of_image>", "<start_of_turn>", "<end_of_turn>")
GEMMA_TEMPLATE = """\
{%- for message in messages %}
    {{- '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\n' }}
    {%- if message.content is string %}
        {{- message.content }}
    {%- else %}
        {%- for part in message.content %}
            {{- '<start_of_image>' if part.type == 'image' else part.text }}
        {%- endfor %}
    {%- endif %}
    {{- '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<start_of_turn>model\n' }}
{%- endif %}
"""
CHATML = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
LFM2_MARKS = ("<image>", "<|image_start|>", "<|image_end|>", "<|img_thumbnail|>")
_GEMMA_OUTER = {
    "vision_config": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 128,
        "patch_size": 4,
    },
    "mm_tokens_per_image": 256,
    "boi_token_index": TURN_END + 1,
    "image_token_index": TURN_END + 2,
    "eoi_token_index": TURN_END + 3,
}


def gemma(family: Family, kind: str) -> VisionFamily:
    """Gemma 3's layout with the decoder of a family for text."""
    options = (*family.options, "exclude_embeds=true")
    text = replace(
        family,
        config="Gemma3Config",
        options=options,
        outer=_GEMMA_OUTER,
        marks=GEMMA_MARKS,
        template=GEMMA_TEMPLATE,
    )
    return VisionFamily(text, kind)


def lfm2(name: str, kind: str) -> VisionFamily:
    """LFM2-VL's layout with the decoder of a family for text."""
    family = NEWER[name]
    assert family.outer is not None
    outer = family.outer | {"image_token_id": TURN_END + 1}
    options = (*family.options, "exclude_embeds=true")
    template = QWEN_TEMPLATE.replace("<|vision_start|><|image_pad|><|vision_end|>", "<image>")
    return VisionFamily(replace(family, options=options, outer=outer, marks=LFM2_MARKS, template=template), kind)


AUDIO_MARKS = ("<|reserved_audio|>", "<|audio_start|>", "<|text_end|>")


def lfm2_audio(name: str, kind: str) -> VisionFamily:
    """LFM2-Audio's layout with the decoder of a family for text. Its template knows texts only."""
    family = NEWER[name]
    assert family.outer is not None
    # The builder takes its decoder for that of a model for images.
    outer = family.outer | {"image_token_id": TURN_END + 1}
    options = (*family.options, "exclude_embeds=true")
    return VisionFamily(replace(family, options=options, outer=outer, marks=AUDIO_MARKS, template=CHATML), kind)


VISION_FAMILIES = {
    "qwen-2.5-vl-images": qwen("qwen-2.5-vl", "qwen2_5_vl"),
    "qwen-3.5-moe-images": qwen("qwen-3.5-moe", "qwen3_5_moe"),
    "qwen-3-vl-images": qwen("qwen-3-vl", "qwen3_vl"),
    "qwen-3.5-images": qwen("qwen-3.5", "qwen3_5"),
    "mistral-3-images": mistral("mistral-3", "mistral3"),
    "lfm2-vl-images": lfm2("lfm2-vl", "lfm2_vl"),
    "lfm2-audio": lfm2_audio("lfm2-vl", "lfm2_audio"),
    "gemma-3-images": gemma(FAMILIES["gemma-3"], "gemma3"),
}
