"""Reads from genai_config.json whether a model that generates text also takes images or audio clips in chats."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from genai_server.errors import ModelDirectoryError
from genai_server.model_files.json_file import read_object
from genai_server.model_files.pooling_model import GENAI_CONFIG

_TOKENIZER = "tokenizer.json"


# Takes audio, but no images.
_LFM2_AUDIO = "lfm2_audio"


class Medium(StrEnum):
    """The kind of input that a model takes in chats besides text."""

    IMAGE = "image"
    AUDIO = "sound"


@dataclass(frozen=True)
class _Family:
    """The texts that stand for an image in the prompts of one family of models, as onnxruntime-genai's image processor
    expects them.
    """

    marker: str
    placeholder: str
    # The token that stands for one image feature in an expanded prompt.
    feature: str


_QWEN = _Family("<|vision_start|><|image_pad|><|vision_end|>", "<|image_pad|>", "<|image_pad|>")
_FAMILIES = {
    "fara": _QWEN,
    "qwen2_5_vl": _QWEN,
    "qwen3_vl": _QWEN,
    "qwen3_5": _QWEN,
    "qwen3_5_moe": _QWEN,
    "gemma3": _Family("<start_of_image>", "<start_of_image>", "<image_soft_token>"),
    "gemma4": _Family("<|image|>", "<|image|>", "<|image|>"),
    "mistral3": _Family("[IMG]", "[IMG]", "[IMG]"),
    "lfm2_vl": _Family("<image>", "<image>", "<image>"),
    # The processor replaces <|image_1|> by this token; the tokenizer only knows this one.
    "phi4mm": _Family("<|endoftext10|>", "<|endoftext10|>", "<|endoftext10|>"),
}


@dataclass(frozen=True)
class VisionModel:
    """Description of a generating model that takes images or, with `Medium.AUDIO`, audio clips, read from its
    directory.
    """

    directory: Path
    # model.type of genai_config.json.
    kind: str
    # The text that stands for one image in a prompt for onnxruntime-genai's processor, or for one audio clip in what a
    # chat template writes.
    marker: str
    # The special token in `marker`, which a chat template writes once for each image or audio clip.
    placeholder: str
    # The token whose embedding is replaced by a feature of the image.
    image_token_id: int
    medium: Medium = Medium.IMAGE


def read_vision_model(model_dir: Path) -> VisionModel | None:
    """Return the description of the model in a directory; None if the model takes only text, or its type is not
    supported.

    Raises ModelDirectoryError, which names the file, if a configuration is not valid.
    """
    config = read_object(model_dir / GENAI_CONFIG)
    model = config.get("model")
    if not isinstance(model, dict):
        return None
    if model.get("type") == _LFM2_AUDIO and _has_graph(model.get("speech")) and _has_graph(model.get("embedding")):
        return _audio_model(model_dir, model)
    family = _FAMILIES.get(str(model.get("type")))
    if family is None or not _has_graph(model.get("vision")) or not _has_graph(model.get("embedding")):
        return None
    token = model.get("image_token_id")
    if not isinstance(token, int):
        token = _token_id(model_dir / _TOKENIZER, family.feature)
    if not 0 <= token < 2**31:
        raise ModelDirectoryError(f"{model_dir / GENAI_CONFIG} has a wrong value for model.image_token_id: {token}")
    return VisionModel(model_dir, str(model["type"]), family.marker, family.placeholder, token)


def _audio_model(model_dir: Path, model: dict[str, Any]) -> VisionModel:
    token = model.get("audio_token_id")
    for added in read_object(model_dir / _TOKENIZER).get("added_tokens") or ():
        if added.get("id") == token and added.get("special"):
            placeholder = str(added["content"])
            return VisionModel(model_dir, _LFM2_AUDIO, placeholder, placeholder, int(added["id"]), Medium.AUDIO)
    raise ModelDirectoryError(
        f"{model_dir / _TOKENIZER} has no special token with model.audio_token_id of genai_config.json: {token}"
    )


def medium_of(model_dir: Path) -> Medium | None:
    """Return whether the model in a directory takes images or audio besides text; None if it takes only text, or if a
    configuration is not valid, which the engine reports.
    """
    try:
        model = read_vision_model(model_dir)
    except ModelDirectoryError:
        return None
    return None if model is None else model.medium


def any_takes_media(model_dirs: Iterable[str]) -> bool:
    """Whether any of the directories has a model that takes images or audio clips in chats."""
    return any(medium_of(Path(model_dir)) is not None for model_dir in model_dirs)


def _has_graph(section: Any) -> bool:
    return isinstance(section, dict) and bool(section.get("filename"))


def _token_id(path: Path, text: str) -> int:
    for token in read_object(path).get("added_tokens") or ():
        if token.get("content") == text:
            return int(token["id"])
    raise ModelDirectoryError(f"{path} has no token {text}, which stands for images, and genai_config.json no id of it")
