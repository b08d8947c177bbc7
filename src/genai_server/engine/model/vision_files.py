"""The graphs of a model that reads images or sounds, next to its decoder's.

onnxruntime-genai keeps them in files of their own. The vision graph makes features [features, hidden_size] of what the
library's image processor makes of an image, or the speech graph of what its sound processor makes of a sound. The
embedding graph makes embeddings of tokens, with features in the places of image tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from genai_server.engine.model.files import read_config
from genai_server.vision_model import Medium, read_vision_model

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
    # Whether the images are sounds.
    hears: bool
    # Patches on each side of a feature.
    merge_size: int
    # Whether the decoder has an adapter for prompts with images, as Phi-4-multimodal's has.
    has_adapter: bool
    # Names of the graphs' inputs and outputs, by the library's names.
    names: Mapping[str, str] = field(default_factory=dict)

    def name(self, name: str) -> str:
        """The graphs' name for an input or output of the library."""
        return self.names.get(name, name)

    @property
    def features(self) -> str:
        """The graphs' name for the features."""
        return self.name("audio_features" if self.hears else "image_features")

    @property
    def part(self) -> str:
        """The section of genai_config.json that has the graph `vision`."""
        return "speech" if self.hears else "vision"

    @property
    def given(self) -> str:
        """The graphs' name for what features are made of: pixels, or a spectrogram."""
        return self.name("audio_embeds" if self.hears else "pixel_values")


def read_vision_files(model_dir: Path) -> VisionFiles | None:
    """The graphs of a checked model directory; None for a model that reads text only."""
    known = read_vision_model(model_dir)
    if known is None:
        return None
    model = read_config(model_dir)["model"]
    hears = known.medium is Medium.SOUND
    vision, embedding = model["speech" if hears else "vision"], model["embedding"]
    parts = [part.get(kind) or {} for part in (vision, embedding) for kind in ("inputs", "outputs")]
    names = {name: graph_name for part in parts for name, graph_name in part.items()}
    return VisionFiles(
        model_dir / vision["filename"],
        model_dir / embedding["filename"],
        known.image_token_id,
        int(model["decoder"]["hidden_size"]),
        hears,
        merge_size=int(vision.get("spatial_merge_size", _MERGE_SIZE)),
        has_adapter="adapter_filename" in vision,
        names=names,
    )
