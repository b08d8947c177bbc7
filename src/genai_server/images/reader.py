"""Reads the images of requests for vision models, in separate processes, which an image can crash without harm."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from genai_server.images.vision_model import VisionModel


class ImageSource(NamedTuple):
    """An image of a request."""

    # A data URL, or an http or https URL of an allowed host.
    url: str
    # Whether a small version of the image is enough.
    low_detail: bool
    # The field, such as `messages[0].content[1].image_url.url`.
    param: str


@dataclass(frozen=True, eq=False)
class ReadImage:
    """An image that is ready for a vision model. Its file exists as long as the object is alive."""

    # SHA-256 in hex of what the image was made from: the bytes, the detail and the model.
    digest: str
    # The tokens that replace the placeholder in the prompt.
    expansion: list[int]
    # How many of them stand for a feature of the image.
    num_features: int
    # Frames, rows and columns in tokens; None for models without positions in three dimensions.
    grid: tuple[int, int, int] | None
    # A .npz file with the tensors of onnxruntime-genai's processor, by its names, without `input_ids`.
    path: Path


class Images:
    """Reads the images of all requests. Belongs to the event loop; must be closed."""

    async def read(self, model: VisionModel, model_dir: Path, sources: Sequence[ImageSource]) -> list[ReadImage]:
        """Read the images of a request, in their order. Equal sources are read once.

        Raises InvalidField, which names the source's field, if an image cannot be fetched or decoded, or is over a
        limit, and ImageReaderUnavailable if no process can be started.
        """
        raise NotImplementedError

    def close(self) -> None:
        """End the processes and remove the files."""
