"""The graphs of a model that reads images, next to its decoder's.

onnxruntime-genai keeps them in files of their own. The vision graph makes features [features, hidden_size] of what the
library's image processor makes of an image. The embedding graph makes embeddings of tokens, with features in the places
of image tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from genai_server.engine.model.files import read_config

# The library's default.
_MERGE_SIZE = 2


@dataclass(frozen=True)
class VisionFiles:
    """What genai_config.json says about the two graphs."""

    vision: Path
    embedding: Path
    # The token whose embeddings are replaced by features.
    image_token: int
    hidden_size: int
    # Patches on each side of a feature.
    merge_size: int
    # Names of the graphs' inputs and outputs, by the library's names.
    names: Mapping[str, str] = field(default_factory=dict)

    def name(self, name: str) -> str:
        """The graphs' name for an input or output of the library."""
        return self.names.get(name, name)


def read_vision_files(model_dir: Path) -> VisionFiles | None:
    """The graphs of a checked model directory; None for a model that reads text only."""
    model = read_config(model_dir)["model"]
    vision, embedding = model.get("vision") or {}, model.get("embedding") or {}
    token = model.get("image_token_id")
    if "filename" not in vision or "filename" not in embedding or not isinstance(token, int):
        return None
    parts = [part.get(kind) or {} for part in (vision, embedding) for kind in ("inputs", "outputs")]
    names = {name: graph_name for part in parts for name, graph_name in part.items()}
    hidden_size = int(model["decoder"]["hidden_size"])
    merge_size = int(vision.get("spatial_merge_size", _MERGE_SIZE))
    vision_path, embedding_path = model_dir / vision["filename"], model_dir / embedding["filename"]
    return VisionFiles(vision_path, embedding_path, token, hidden_size, merge_size, names)
