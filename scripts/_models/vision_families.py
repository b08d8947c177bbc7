"""Models for images with random weights: their decoders are built like those of text models.

Imported, it needs nothing but the standard library.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

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


VISION_FAMILIES = {
    "qwen-3-vl-images": qwen("qwen-3-vl", "qwen3_vl"),
    "qwen-3.5-images": qwen("qwen-3.5", "qwen3_5"),
}
