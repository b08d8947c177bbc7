"""Estimates the time, memory and disk space that it takes to build a decoder, from its number of weights
(docs/export.md).
"""

from dataclasses import dataclass

from genai_server.hub.architectures import count_weights, read_source_config
from genai_server.hub.builder import Build

# Seconds for a billion weights on two cores. Weights that are not rounded take at most as long as those of 8 bits.
_SECONDS = {"int4": 200.0, "int8": 100.0}
# Bytes of memory that a build takes for each weight of the model, and those that PyTorch and the builder take always.
_MEMORY, _PROGRAMS = 7.0, 768 * 1024**2
# Bytes of a weight in the built model, with scales.
_BYTES = {"int4": 0.8, "int8": 1.15, "fp16": 2.0, "bf16": 2.0, "fp32": 4.0}


@dataclass(frozen=True)
class BuildCost:
    """The estimated cost of a build. Sizes are in bytes."""

    weights: int
    seconds: float
    # The largest amount of memory that the build needs.
    memory: int
    # Size of the built model on disk.
    size: int


def cost_of(build: Build) -> BuildCost | None:
    """Estimate the cost of a build with onnxruntime-genai's model builder.

    None if the number of weights is unknown, and for kinds of builds that were not measured: encoders, GGUF files,
    mobius.
    """
    if build.is_encoder or build.uses_mobius or build.gguf is not None:
        return None
    weights = count_weights(read_source_config(build.source))
    if weights is None:
        return None
    seconds = _SECONDS.get(build.precision, _SECONDS["int8"]) * weights / 1e9
    return BuildCost(weights, seconds, int(_MEMORY * weights) + _PROGRAMS, int(_BYTES[build.precision] * weights))
