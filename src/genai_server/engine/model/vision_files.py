"""The graphs of a model that reads images or sounds, next to its decoder's.

onnxruntime-genai keeps them in files of their own. The vision graph makes features [features, hidden_size] of what the
library's image processor makes of an image, or the speech graph of what its sound processor makes of a sound. The
embedding graph makes embeddings of tokens, with features in the places of image tokens.
"""

from pathlib import Path

from genai_server.engine.decoder_graph import VisionFiles
from genai_server.engine.model.files import read_config
from genai_server.model_files.vision_model import Medium, read_vision_model

# The library's default.
_MERGE_SIZE = 2


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
