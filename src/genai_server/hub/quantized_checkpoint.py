"""Checkpoints whose weights are already quantized, by GPTQ or AWQ: `read_quantization` says how they are quantized, and
both it and `check_tensors` refuse those that cannot be built.

`quantization_config` in a model's config.json describes the quantization. The model builder keeps the quantized values,
so precision and group size are those of the checkpoint. Checkpoints that the builder reads wrongly, or not at all, are
refused; the faults listed here are those of version 0.18.
"""

import json
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from genai_server.errors import ConfigurationError

_BITS = (4, 8)
# What MatMulNBits takes.
_GROUP_SIZES = (16, 32, 64, 128, 256)
# Architectures whose `quantization_config` the builder does not need.
_IGNORED = ("GptOssForCausalLM", "Mistral3ForConditionalGeneration")
# Formats of which the builder makes operators for CUDA only.
_CUDA_ONLY = ("compressed-tensors", "modelopt")
_PROJECTION = re.compile(r"layers\.\d+\.\w+\.\w+_proj\.weight$")
_SCALES = ".scales"
# A header of safetensors is longer in no checkpoint of any model.
_MAX_HEADER = 256 * 1024 * 1024


@dataclass(frozen=True)
class Quantization:
    """How the weights of a checkpoint are already quantized: the method (gptq or awq), the number of bits of a weight,
    and the number of weights in a row that share a scale.
    """

    method: str
    bits: int
    # Number of weights in a row that share a scale.
    group_size: int

    @property
    def precision(self) -> str:
        """The only precision, such as "int4", in which the checkpoint can be built."""
        return f"int{self.bits}"

    def __str__(self) -> str:
        return f"{self.method} with {self.bits} bits in groups of {self.group_size}"


def read_quantization(config: Mapping[str, Any], device: str) -> Quantization | None:
    """Return how the weights of a checkpoint are quantized, from `config`, the contents of the model's config.json.
    Returns None if they are not quantized, or if the builder needs no description of them.

    Raises ConfigurationError if the builder cannot build a model with these weights for `device`.
    """
    section = config.get("quantization_config")
    architectures = config.get("architectures") or [""]
    if not section or architectures[0] in _IGNORED:
        return None
    method = _method(section)
    if method in _CUDA_ONLY and device == "cuda":
        return None
    try:
        if method not in _READERS:
            methods = ", ".join(_READERS)
            raise _Unsupported(f"export reads {methods}; export the original model instead")
        quantization = _READERS[method](section)
        _check(quantization, config)
    except _Unsupported as reason:
        raise ConfigurationError(f"the weights are quantized already ({method}): {reason}") from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"quantization_config in config.json ({method}) lacks or has a wrong value for {error}"
        ) from None
    return quantization


def check_tensors(source: Path, quantization: Quantization) -> None:
    """Raise ConfigurationError if the model builder would read the quantized weights in the directory `source` wrongly,
    because some are not quantized or have an unsuitable data type.

    Files that cannot be read are skipped; the builder reports them.
    """
    for path in sorted(source.glob("*.safetensors")):
        for name, dtype in _tensor_types(path).items():
            if _PROJECTION.search(name):
                reason = f"{name} is not quantized, and the model builder cannot mix both in a layer"
            elif quantization.bits == 8 and name.endswith(_SCALES) and dtype == "BF16":
                reason = f"{name} is in bfloat16, with which the model builder rounds 8-bit values wrongly"
            else:
                continue
            raise ConfigurationError(f"the weights are quantized already ({quantization.method}): {reason}")


class _Unsupported(Exception):
    """Raised inside this module with the reason why the model builder cannot build a checkpoint."""


def _check(quantization: Quantization, config: Mapping[str, Any]) -> None:
    """Raise _Unsupported if a quantized model cannot be built or run: because of a number of bits or a group size that
    ONNX Runtime cannot run, or because of quantized experts, which the builder cannot read. `config` is its
    config.json.
    """
    if quantization.bits not in _BITS:
        raise _Unsupported(f"they have {quantization.bits} bits, and the server runs 4 and 8")
    if quantization.group_size not in _GROUP_SIZES:
        sizes = ", ".join(map(str, _GROUP_SIZES))
        raise _Unsupported(f"their group_size is {quantization.group_size}, and ONNX Runtime takes {sizes}")
    if config.get("num_local_experts") or config.get("num_experts"):
        raise _Unsupported("the model builder does not read quantized experts of this format")


def _gptq(section: Mapping[str, Any]) -> Quantization:
    if section.get("desc_act"):
        raise _Unsupported("zero points in act-order (desc_act) are read wrongly, and products are 100 times slower")
    version = section.get("checkpoint_format") or section.get("format") or "gptq"
    if version != "gptq":
        raise _Unsupported(f"the model builder reads zero points of the format gptq only, and this is {version}")
    return Quantization("gptq", int(section["bits"]), int(section["group_size"]))


def _awq(section: Mapping[str, Any]) -> Quantization:
    version = str(section.get("version") or "gemm").lower()
    if version != "gemm":
        raise _Unsupported(f"the model builder reads the version gemm only, and this is {version}")
    if not section.get("zero_point", True):
        raise _Unsupported("the model builder needs zero points, which they lack")
    if section["bits"] != 4:
        raise _Unsupported(f"the model builder reads 4 bits of this format, and they have {section['bits']}")
    return Quantization("awq", 4, int(section["group_size"]))


_READERS: dict[str, Callable[[Mapping[str, Any]], Quantization]] = {
    "awq": _awq,
    "gptq": _gptq,
}


def _method(section: Any) -> str:
    return str(section.get("quant_method", "unknown")) if isinstance(section, Mapping) else "unknown"


def _tensor_types(path: Path) -> dict[str, str]:
    """Return the data type of each tensor in a safetensors file, such as "BF16", by the tensor's name. Empty if the
    file's header cannot be read.
    """
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > _MAX_HEADER:
                return {}
            header = json.loads(file.read(length))
        return {name: str(entry["dtype"]) for name, entry in header.items() if name != "__metadata__"}
    except (OSError, ValueError, struct.error, AttributeError, KeyError, TypeError):
        return {}
