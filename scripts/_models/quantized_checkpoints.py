"""Checkpoints whose weights are quantized already, as AutoGPTQ, AutoAWQ, Quark and Olive write them.

Each is made from a small model with random weights, by rounding to the nearest value. Next to it a model with the very
same values in 32 bits is written, which a built model must equal. The module needs `.venv-models`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]
# The order in which AutoAWQ and Quark pack eight values of 4 bits into a word.
_INTERLEAVED = (0, 2, 4, 6, 1, 3, 5, 7)
_LAYERS = ("_proj.weight",)


@dataclass(frozen=True)
class Rounded:
    """A matrix in groups of inputs: `values` and `zeros` are whole numbers from 0, of shapes [inputs, outputs] and
    [groups, outputs]; `groups` has the group of each input.
    """

    values: torch.Tensor
    zeros: torch.Tensor
    scales: torch.Tensor
    groups: torch.Tensor
    bits: int

    def weight(self) -> torch.Tensor:
        """The matrix as Transformers has it, [outputs, inputs], in 32 bits."""
        scales = self.scales.float()
        return ((self.values - self.zeros[self.groups]) * scales[self.groups]).T.contiguous()


@dataclass(frozen=True)
class CheckpointFormat:
    """How a tool writes its quantized checkpoints."""

    title: str
    # `quantization_config` of config.json.
    config: dict[str, Any]
    write: Callable[[str, Rounded], Tensors]
    bits: int = 4
    group: int = 32
    symmetric: bool = False
    # GPTQ's act-order: the inputs of a group lie anywhere.
    shuffled: bool = False
    scales: torch.dtype = torch.float16
    with_head: bool = False
    # Why the server refuses it; "" if it is built.
    refused: str = ""


def write_checkpoint(source: Path, checkpoint: CheckpointFormat, target: Path, reference: Path) -> None:
    """Write the quantized checkpoint of a model into `target`, and its values in 32 bits into `reference`."""
    for folder in (target, reference):
        shutil.copytree(source, folder)
    tensors, same = load_file(source / "model.safetensors"), {}
    quantized: Tensors = {}
    generator = torch.Generator().manual_seed(11)
    for name, tensor in tensors.items():
        is_head = name == "lm_head.weight" and checkpoint.with_head
        if not (name.endswith(_LAYERS) or is_head):
            quantized[name] = same[name] = tensor
            continue
        rounded = _round(tensor, checkpoint, generator)
        same[name] = rounded.weight()
        quantized |= checkpoint.write(name.removesuffix(".weight"), rounded)
    metadata = {"format": "pt"}
    save_file({name: tensor.contiguous() for name, tensor in quantized.items()}, target / "model.safetensors", metadata)
    save_file(same, reference / "model.safetensors", metadata)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | {"quantization_config": checkpoint.config}))


def _round(weight: torch.Tensor, checkpoint: CheckpointFormat, generator: torch.Generator) -> Rounded:
    outputs, inputs = weight.shape
    group = inputs if checkpoint.group == -1 else checkpoint.group
    groups = torch.arange(inputs) // group
    if checkpoint.shuffled:
        groups = groups[torch.randperm(inputs, generator=generator)]
    order = torch.argsort(groups, stable=True)
    grouped = weight.T[order].reshape(inputs // group, group, outputs)
    most = 2**checkpoint.bits - 1
    low, high = grouped.amin(1).clamp(max=0), grouped.amax(1).clamp(min=0)
    if checkpoint.symmetric:
        high = torch.maximum(-low, high)
        low = -high
    scales = ((high - low) / most).to(checkpoint.scales)
    middle = torch.full_like(low, 2 ** (checkpoint.bits - 1))
    zeros = middle if checkpoint.symmetric else torch.round(-low / scales.float()).clamp(0, most)
    values = torch.round(grouped / scales.float()[:, None] + zeros[:, None]).clamp(0, most).reshape(inputs, outputs)
    in_place = torch.empty_like(values)
    in_place[order] = values
    return Rounded(in_place.int(), zeros.int(), scales, groups, checkpoint.bits)


def _packed(values: torch.Tensor, bits: int, order: tuple[int, ...] = tuple(range(8))) -> torch.Tensor:
    """Whole numbers in words of 32 bits along the last axis."""
    count = 32 // bits
    parts = values.reshape(*values.shape[:-1], -1, count).to(torch.int64)
    word = sum(parts[..., order[place] if bits == 4 else place] << (bits * place) for place in range(count))
    assert isinstance(word, torch.Tensor)
    return torch.where(word >= 2**31, word - 2**32, word).to(torch.int32)


def gptq(name: str, matrix: Rounded, *, first_zero: int = 1) -> Tensors:
    """GPTQ packs values along the inputs; the first version of its format stores zeros less one."""
    zeros = (matrix.zeros - first_zero) & (2**matrix.bits - 1)
    return {
        f"{name}.qweight": _packed(matrix.values.T, matrix.bits).T,
        f"{name}.qzeros": _packed(zeros, matrix.bits),
        f"{name}.scales": matrix.scales,
        f"{name}.g_idx": matrix.groups.int(),
    }


def awq(name: str, matrix: Rounded) -> Tensors:
    """AWQ packs values along the outputs, in an order of its own."""
    return {
        f"{name}.qweight": _packed(matrix.values, 4, _INTERLEAVED),
        f"{name}.qzeros": _packed(matrix.zeros, 4, _INTERLEAVED),
        f"{name}.scales": matrix.scales,
    }


def quark(name: str, matrix: Rounded, *, signed: bool = False, order: tuple[int, ...] = _INTERLEAVED) -> Tensors:
    """Quark packs like AWQ; signed values are in two's complement around zero."""
    first = 8 if signed else 0
    return {
        f"{name}.weight": _packed((matrix.values - first) & 15, 4, order),
        f"{name}.weight_zero_point": _packed((matrix.zeros - first) & 15, 4, order),
        f"{name}.weight_scale": matrix.scales,
    }


def olive(name: str, matrix: Rounded) -> Tensors:
    """Olive packs two values into a byte, along the inputs."""
    pairs, zeros = matrix.values.T.reshape(matrix.values.shape[1], -1, 2), matrix.zeros.T
    if zeros.shape[1] % 2:
        zeros = torch.nn.functional.pad(zeros, (0, 1))
    both = zeros.reshape(zeros.shape[0], -1, 2)
    return {
        f"{name}.qweight": (pairs[..., 0] | pairs[..., 1] << 4).to(torch.uint8),
        f"{name}.qzeros": (both[..., 0] | both[..., 1] << 4).to(torch.uint8),
        f"{name}.scales": matrix.scales.T.contiguous(),
    }


_GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "checkpoint_format": "gptq"}
_AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}
_OLIVE = {"quant_method": "olive", "bits": 4, "group_size": 32, "overrides": {}}


def _quark(dtype: str = "uint4", pack_method: str = "reorder") -> dict[str, Any]:
    return {
        "quant_method": "quark",
        "global_quant_config": {"weight": {"dtype": dtype, "qscheme": "per_group", "group_size": 32}},
        "layer_quant_config": {},
        "exclude": ["lm_head"],
        "export": {"pack_method": pack_method, "weight_format": "real_quantized"},
    }


FORMATS = (
    CheckpointFormat("GPTQ, 4 bits, symmetric", _GPTQ, gptq, symmetric=True),
    CheckpointFormat("GPTQ, 4 bits, groups of 128", _GPTQ | {"group_size": 128}, gptq, group=128),
    CheckpointFormat("GPTQ, 4 bits, with the head", _GPTQ | {"lm_head": True}, gptq, with_head=True),
    CheckpointFormat("GPTQ, 8 bits", _GPTQ | {"bits": 8}, gptq, bits=8),
    CheckpointFormat(
        "GPTQ, 8 bits, scales in bfloat16",
        _GPTQ | {"bits": 8},
        gptq,
        bits=8,
        scales=torch.bfloat16,
        refused="values are rounded wrongly",
    ),
    CheckpointFormat(
        "GPTQ, act-order",
        _GPTQ | {"desc_act": True},
        gptq,
        shuffled=True,
        refused="zero points are read wrongly",
    ),
    CheckpointFormat(
        "GPTQ, format gptq_v2",
        _GPTQ | {"checkpoint_format": "gptq_v2"},
        partial(gptq, first_zero=0),
        refused="zero points are read wrongly",
    ),
    CheckpointFormat("AWQ", _AWQ, awq),
    CheckpointFormat("AWQ, groups of 128", _AWQ | {"group_size": 128}, awq, group=128),
    CheckpointFormat("Quark, uint4", _quark(), quark),
    CheckpointFormat(
        "Quark, int4",
        _quark("int4"),
        partial(quark, signed=True),
        symmetric=True,
        refused="signs are read wrongly",
    ),
    CheckpointFormat(
        "Quark, pack_method order",
        _quark(pack_method="order"),
        partial(quark, order=tuple(range(8))),
        refused="the order is read wrongly",
    ),
    CheckpointFormat("Olive", _OLIVE, olive),
)
# For models whose projections are fused.
FUSED_FORMATS = (
    CheckpointFormat("GPTQ, fused", _GPTQ, gptq),
    CheckpointFormat("AWQ, fused", _AWQ, awq),
    CheckpointFormat("Quark, fused", _quark(), quark),
    CheckpointFormat("Olive, fused", _OLIVE, olive, refused="zero points are divided wrongly"),
)
