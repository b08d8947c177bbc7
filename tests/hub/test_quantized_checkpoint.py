"""Checkpoints with quantized weights: what is read of them, and which ones the builder would read wrongly."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from genai_server.errors import ConfigurationError
from genai_server.hub.quantized_checkpoint import Quantization, check_tensors, read_quantization

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "checkpoint_format": "gptq"}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm", "zero_point": True}


def read(section: object, device: str = "cpu", **config: Any) -> Quantization | None:
    return read_quantization({"architectures": ["LlamaForCausalLM"], "quantization_config": section, **config}, device)


@pytest.mark.parametrize(
    ("section", "expected", "precision"),
    [
        (GPTQ, Quantization("gptq", 4, 128), "int4"),
        (GPTQ | {"bits": 8}, Quantization("gptq", 8, 128), "int8"),
        (AWQ, Quantization("awq", 4, 64), "int4"),
    ],
)
def test_bits_and_group_size_are_the_checkpoints(section: Any, expected: Quantization, precision: str) -> None:
    found = read(section)
    assert found == expected
    assert found.precision == precision


@pytest.mark.parametrize(
    ("section", "reason"),
    [
        (GPTQ | {"checkpoint_format": "gptq_v2"}, "this is gptq_v2"),
        (GPTQ | {"desc_act": True}, "act-order"),
        (GPTQ | {"bits": 3}, "they have 3 bits"),
        (GPTQ | {"group_size": -1}, "their group_size is -1"),
        (AWQ | {"version": "gemv"}, "this is gemv"),
        (AWQ | {"zero_point": False}, "needs zero points"),
        (AWQ | {"bits": 8}, "reads 4 bits of this format"),
        ({"quant_method": "bitsandbytes"}, "export reads awq, gptq"),
        ({"quant_method": "compressed-tensors"}, "export reads awq, gptq"),
        ({"quant_method": "quark"}, "export reads awq, gptq; export the original model instead"),
        ({"quant_method": "olive"}, "export reads awq, gptq; export the original model instead"),
    ],
)
def test_weights_that_the_builder_reads_wrongly_are_refused(section: Any, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason) as refusal:
        read(section)
    assert refusal.value.message.startswith(f"the weights are quantized already ({section['quant_method']}): ")


def test_quantized_experts_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="experts"):
        read(AWQ, num_experts=8)


@pytest.mark.parametrize("section", [{"quant_method": "gptq"}, GPTQ | {"bits": None}, "awq"])
def test_an_incomplete_description_is_refused(section: object) -> None:
    with pytest.raises(ConfigurationError, match="quantiz"):
        read(section)


def test_models_without_quantized_weights_and_those_for_cuda_are_not_concerned() -> None:
    assert read_quantization({}, "cpu") is None
    assert read(None) is None
    assert read({"quant_method": "mxfp4"}, architectures=["GptOssForCausalLM"]) is None
    assert read({"quant_method": "fp8"}, architectures=["Mistral3ForConditionalGeneration"]) is None
    assert read({"quant_method": "modelopt"}, "cuda") is None


def write_header(folder: Path, **types: str) -> None:
    header = {name: {"dtype": dtype, "shape": [0], "data_offsets": [0, 0]} for name, dtype in types.items()}
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)


@pytest.mark.parametrize(
    ("quantization", "name", "dtype", "reason"),
    [
        (Quantization("awq", 4, 64), "model.layers.3.mlp.up_proj.weight", "F16", "up_proj.weight is not quantized"),
        (Quantization("gptq", 8, 64), "model.layers.3.mlp.up_proj.scales", "BF16", "rounds 8-bit values wrongly"),
    ],
)
def test_tensors_that_the_builder_reads_wrongly_are_refused(
    tmp_path: Path, quantization: Quantization, name: str, dtype: str, reason: str
) -> None:
    write_header(tmp_path, **{"lm_head.weight": "F16", name: dtype})
    with pytest.raises(ConfigurationError, match=reason):
        check_tensors(tmp_path, quantization)


def test_correct_and_unreadable_tensors_are_left_to_the_builder(tmp_path: Path) -> None:
    check_tensors(tmp_path, Quantization("awq", 4, 64))
    write_header(tmp_path, **{"lm_head.weight": "F16", "model.layers.0.mlp.up_proj.qweight": "I32"})
    check_tensors(tmp_path, Quantization("awq", 4, 64))
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 40)
    check_tensors(tmp_path, Quantization("awq", 4, 64))
