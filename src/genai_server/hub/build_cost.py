"""What building a decoder takes, from the number of its weights, by measurements (docs/models.md)."""

from dataclasses import dataclass

from genai_server.hub.architectures import count_weights, read_source_config
from genai_server.hub.builder import AS_STORED, Build

# Seconds for a billion weights on two cores, and bytes of memory for a weight, while onnxruntime-genai's builder works.
_SECONDS = {"int4": 240.0, "int8": 120.0}
_OTHER_SECONDS = 60.0
_MEMORY = 8.0
# The same while mobius works, which has all weights in 32 bits and then rounds them.
_SECONDS_OF_MOBIUS, _MEMORY_OF_MOBIUS = 240.0, 12.0
# Bytes of a weight in the built model, with scales.
_BYTES = {"int4": 0.7, "int8": 1.1, AS_STORED: 0.8, "fp16": 2.0, "bf16": 2.0, "fp32": 4.0}
# Bytes of the programs themselves.
_PROGRAMS = 1024**3


@dataclass(frozen=True)
class BuildCost:
    """An estimate. Sizes are in bytes."""

    weights: int
    seconds: float
    # Most memory while it is built.
    memory: int
    # The built model on disk, and its weights once it is loaded.
    size: int


def cost_of(build: Build) -> BuildCost | None:
    """What a build takes; None for an encoder, and where the source does not say how many weights it has."""
    weights = None if build.is_encoder else count_weights(read_source_config(build.source))
    if weights is None:
        return None
    seconds, memory = _SECONDS.get(build.precision, _OTHER_SECONDS), _MEMORY
    if build.uses_mobius:
        seconds, memory = _SECONDS_OF_MOBIUS, _MEMORY_OF_MOBIUS
    return BuildCost(
        weights,
        seconds * weights / 1e9,
        int(memory * weights) + _PROGRAMS,
        int(_BYTES[build.precision] * weights),
    )
