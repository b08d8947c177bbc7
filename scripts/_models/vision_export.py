"""A complete model directory for images of a family, with random weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from .export import BUILDER, PATCHED_BUILDER, export
from .family import make
from .vision_families import VisionFamily
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

WriteGraph = Callable[[Path, int, float], None]


def export_images(family: VisionFamily, work: Path, precision: str) -> Path:
    """Build the decoder and add the rest; returns the directory, which is in `work` as its source is."""
    source, built = work / "source", work / "built"
    make(family.text, source)
    builder = PATCHED_BUILDER if family.kind == "gemma3" else BUILDER
    export(source, built, precision=precision, block_size=32, options=family.text.options, builder=builder)
    layout, write = _layout(family)

    def write_vision(path: Path, table: np.ndarray) -> None:
        write(path, table.shape[1], 2 * float(table.std()))

    complete(layout, source, built, write_vision)
    return built


def _layout(family: VisionFamily) -> tuple[Layout, WriteGraph]:
    """What surrounds the vision graph, and what writes it for features of a width and a loudness."""
    tokens = family.text.outer or {}
    if family.kind == "gemma3":
        layout = gemma_layout(family.kind, tokens["image_token_index"], family.text.settings["hidden_size"])
        return layout, lambda path, hidden, loudness: write_gemma_vision(path, hidden, GEMMA_PATCH, loudness)
    if family.kind == "lfm2_audio":
        return lfm2_audio_layout(family.kind, tokens["image_token_id"]), write_lfm2_speech
    limits = (family.min_pixels, family.max_pixels)
    if family.kind == "mistral3":
        layout = pixtral_layout(family.kind, tokens["image_token_index"], *limits)
        return layout, lambda path, hidden, loudness: write_pixtral_vision(path, hidden, PATCH, loudness)
    if family.kind == "lfm2_vl":
        layout = lfm2_layout(family.kind, tokens["image_token_id"], *limits)
        return layout, lambda path, hidden, loudness: write_lfm2_vision(path, hidden, PATCH, loudness)
    layout, patch = qwen_layout(family.kind, tokens, *limits), qwen_patch(family.kind)
    return layout, lambda path, hidden, loudness: write_qwen_vision(path, hidden, patch, loudness)
