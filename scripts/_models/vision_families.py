"""Models for images and sounds with random weights: their decoders are built like those of text models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from .export import BUILDER, PATCHED_BUILDER, export
from .family import TURN_END, Family, make
from .vision_files import (
    GEMMA_PATCH,
    PATCH,
    Layout,
    complete,
    gemma_layout,
    lfm2_audio_layout,
    lfm2_layout,
    pixtral_layout,
    qwen_layout,
    qwen_patch,
)
from .vision_graphs import (
    write_gemma_vision,
    write_lfm2_speech,
    write_lfm2_vision,
    write_pixtral_vision,
    write_qwen_vision,
)

# An image is scaled to between these numbers of pixels; each 32x32 pixels become one token.
_LIMITS = (64 * 64, 256 * 256)
QWEN_MARKS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")


def template(name: str) -> str:
    """A chat template. In `qwen`, as in Qwen's own, parts of a message are texts and images, and each image becomes one
    <|image_pad|>.
    """
    return (Path(__file__).with_name("templates") / f"{name}.jinja").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Medium:
    """What a model for images or sounds adds to its decoder.

    `marks` are special tokens behind the tokenizer's own. `token_ids` are settings of the decoder that name one of them
    by its place. `surround` gives what surrounds the graph that reads images or sounds, for a type of models (`kind`);
    `write` writes this graph for features of a width and a loudness.
    """

    marks: tuple[str, ...]
    token_ids: dict[str, int]
    template: str
    surround: Callable[[str, Family], Layout]
    write: Callable[[str, Path, int, float], None]
    builder: str = BUILDER


MEDIA = {
    "qwen": Medium(
        QWEN_MARKS,
        {"vision_start_token_id": 0, "vision_end_token_id": 1, "image_token_id": 2, "video_token_id": 3},
        template("qwen"),
        lambda kind, text: qwen_layout(kind, text.outer or {}, *_LIMITS),
        lambda kind, path, hidden, loudness: write_qwen_vision(path, hidden, qwen_patch(kind), loudness),
    ),
    "mistral": Medium(
        ("[IMG]", "[IMG_BREAK]", "[IMG_END]", "[INST]", "[/INST]"),
        {"image_token_index": 0},
        template("mistral"),
        lambda kind, text: pixtral_layout(kind, TURN_END + 1, *_LIMITS),
        lambda kind, path, hidden, loudness: write_pixtral_vision(path, hidden, PATCH, loudness),
    ),
    "gemma": Medium(
        ("<start_of_image>", "<image_soft_token>", "<end_of_image>", "<start_of_turn>", "<end_of_turn>"),
        {"boi_token_index": 0, "image_token_index": 1, "eoi_token_index": 2},
        template("gemma"),
        lambda kind, text: gemma_layout(kind, TURN_END + 2, text.settings["hidden_size"]),
        lambda kind, path, hidden, loudness: write_gemma_vision(path, hidden, GEMMA_PATCH, loudness),
        PATCHED_BUILDER,
    ),
    "lfm2": Medium(
        ("<image>", "<|image_start|>", "<|image_end|>", "<|img_thumbnail|>"),
        {"image_token_id": 0},
        template("qwen").replace("<|vision_start|><|image_pad|><|vision_end|>", "<image>"),
        lambda kind, text: lfm2_layout(kind, TURN_END + 1, *_LIMITS),
        lambda kind, path, hidden, loudness: write_lfm2_vision(path, hidden, PATCH, loudness),
    ),
    # Its template knows texts only, and the builder takes its decoder for that of a model for images.
    "lfm2_audio": Medium(
        ("<|reserved_audio|>", "<|audio_start|>", "<|text_end|>"),
        {"image_token_id": 0},
        template("chatml"),
        lambda kind, text: lfm2_audio_layout(kind, TURN_END + 1),
        lambda kind, path, hidden, loudness: write_lfm2_speech(path, hidden, loudness),
    ),
}


def export_medium(text: Family, kind: str, medium: Medium, work: Path) -> Path:
    """Build the decoder of a text model without its embeddings, and add the rest of a model of this kind, in 32 bits.

    Returns the directory, which is in `work` as its source is.
    """
    source, built = work / "source", work / "built"
    ids = {name: TURN_END + 1 + place for name, place in medium.token_ids.items()}
    options = (*text.options, "exclude_embeds=true")
    outer = (text.outer or {}) | ids
    text = replace(text, options=options, outer=outer, marks=medium.marks, template=medium.template)
    make(text, source)
    export(source, built, precision="fp32", block_size=32, options=options, builder=medium.builder)

    def write_vision(path: Path, table: np.ndarray) -> None:
        medium.write(kind, path, table.shape[1], 2 * float(table.std()))

    complete(medium.surround(kind, text), source, built, write_vision)
    return built
