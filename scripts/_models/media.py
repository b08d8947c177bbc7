"""Models for images and sounds: their decoders are built like those of text models, and the rest is added.

media.toml has what each type of models adds. The graphs for images and sounds have random weights, except where a
caller writes a graph of its own.
"""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from .export import BUILDER, export
from .family import Family, make
from .graphs import write_embedding, write_medium

_FOLDER = Path(__file__).parent
Json = dict[str, Any]


@dataclass(frozen=True)
class Medium:
    """What a model has besides its decoder; the head of media.toml explains the fields."""

    marks: tuple[str, ...]
    ids: dict[str, int]
    token: int
    template: str
    graph: str
    settings: Json
    inputs: dict[str, str]
    # "vision" or "speech": the part of onnxruntime-genai's configuration, and the file of the graph.
    kind: str = "vision"
    output: str = "image_features"
    values: Json = field(default_factory=dict)
    # The side of a patch in pixels.
    patch: int = 0
    section: Json = field(default_factory=dict)
    processor: str = ""
    steps: Json = field(default_factory=dict)
    # Axes of the features before the last one.
    features: str = "features"
    # Whether embeddings are multiplied by the root of their width.
    multiplied: bool = False
    builder: str = BUILDER

    def with_pixels(self, min_pixels: int, max_pixels: int) -> Medium:
        """The same with images that are scaled to between these numbers of pixels."""
        limits = {"min_pixels": min_pixels, "max_pixels": max_pixels}
        return replace(self, steps=self.steps | {"Resize": self.steps["Resize"] | limits})


def _read_media() -> dict[str, Medium]:
    found: dict[str, Json] = {}
    for name, given in tomllib.loads((_FOLDER / "media.toml").read_text(encoding="utf-8")).items():
        found[name] = found.get(given.pop("like", ""), {}) | given
    return {name: Medium(**given | {"marks": tuple(given["marks"])}) for name, given in found.items()}


MEDIA = _read_media()
QWEN = MEDIA["qwen3_vl"]


def template(name: str) -> str:
    """A chat template. In `qwen`, as in Qwen's own, parts of a message are texts and images, and each image becomes one
    <|image_pad|>; in `lfm2`, one <image>.
    """
    if name == "lfm2":
        return template("qwen").replace("<|vision_start|><|image_pad|><|vision_end|>", "<image>")
    return (_FOLDER / "templates" / f"{name}.jinja").read_text(encoding="utf-8")


def export_medium(text: Family, name: str, work: Path) -> Path:
    """Build the decoder of a text model without its embeddings, and add the rest of a model of this type, in 32 bits.

    Returns the directory, which is in `work` as its source is.
    """
    medium, source, built = MEDIA[name], work / "source", work / "built"
    options = (*text.options, "exclude_embeds=true")
    outer = (text.outer or {}) | medium.ids
    make(replace(text, options=options, outer=outer, marks=medium.marks, template=template(medium.template)), source)
    export(source, built, precision="fp32", block_size=32, options=options, builder=medium.builder)

    def write(path: Path, table: np.ndarray) -> None:
        write_medium(path, medium.graph, medium.values, table.shape[1], medium.patch, 2 * float(table.std()))

    complete(medium, name, source, built, write)
    return built


def complete(
    medium: Medium,
    name: str,
    source: Path,
    built: Path,
    write: Callable[[Path, np.ndarray], None],
    *,
    half: bool = False,
) -> None:
    """Add to the builder's directory what images or sounds need. It was built from the Hugging Face directory `source`.

    `write` gets the path of the graph and the embeddings of tokens [vocabulary, hidden]. With `half` these embeddings
    are kept in 16 bits.
    """
    table = _embeddings(source)
    table = table * np.float32(table.shape[1] ** 0.5 if medium.multiplied else 1.0)
    embedding, file = built / "embedding.onnx", f"{medium.kind}.onnx"
    write_embedding(embedding, table, medium.token, features=medium.features, name=medium.output, half=half)
    write(built / file, table)
    section = {"filename": file, **medium.section, "inputs": medium.inputs, "outputs": {medium.output: medium.output}}
    if medium.steps:
        steps = [
            {"operation": {"name": kind, "type": kind} | ({"attrs": settings} if settings else {})}
            for kind, settings in medium.steps.items()
        ]
        processor = {"processor": {"name": medium.processor, "transforms": steps}}
        (built / "processor_config.json").write_text(json.dumps(processor, indent=4) + "\n")
        section = {"filename": file, "config_filename": "processor_config.json"} | section
    # The builder's may name a tokenizer class that onnxruntime-genai does not know.
    shutil.copy(source / "tokenizer_config.json", built)
    path = built / "genai_config.json"
    config = json.loads(path.read_text())
    inputs = {"input_ids": "input_ids", medium.output: medium.output}
    embedded = {"filename": embedding.name, "inputs": inputs, "outputs": {"inputs_embeds": "inputs_embeds"}}
    config["model"] |= {"type": name, **medium.settings, "embedding": embedded, medium.kind: section}
    path.write_text(json.dumps(config, indent=4) + "\n")


def _embeddings(source: Path) -> np.ndarray:
    from safetensors.numpy import load_file

    weights = load_file(source / "model.safetensors")
    (name,) = (name for name in weights if name.endswith("embed_tokens.weight"))
    table: np.ndarray = weights[name]
    return table
