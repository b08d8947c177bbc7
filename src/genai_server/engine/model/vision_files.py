"""Describes the graphs next to the decoder of a model that reads images or audio.

onnxruntime-genai keeps them in files of their own. The vision graph makes features [features, hidden_size] from the
output of the library's image processor, the speech graph from that of its audio processor. The embedding graph makes
embeddings of tokens, with the features in place of image tokens.
"""

from pathlib import Path

from genai_server.engine.decoder_graph import VisionFiles
from genai_server.engine.model.files import read_config
from genai_server.model_files.vision_model import Medium, read_vision_model

# The library's default.
_MERGE_SIZE = 2


def read_vision_files(model_dir: Path) -> VisionFiles | None:
    """Description of these graphs in a checked model directory; None for a model that reads text only."""
    known = read_vision_model(model_dir)
    if known is None:
        return None
    model = read_config(model_dir)["model"]
    has_audio = known.medium is Medium.AUDIO
    vision, embedding = model["speech" if has_audio else "vision"], model["embedding"]
    parts = [part.get(kind) or {} for part in (vision, embedding) for kind in ("inputs", "outputs")]
    names = {name: graph_name for part in parts for name, graph_name in part.items()}
    return VisionFiles(
        model_dir / vision["filename"],
        model_dir / embedding["filename"],
        known.image_token_id,
        int(model["decoder"]["hidden_size"]),
        has_audio,
        merge_size=int(vision.get("spatial_merge_size", _MERGE_SIZE)),
        has_adapter="adapter_filename" in vision,
        names=names,
    )
