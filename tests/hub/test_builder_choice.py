"""Which builder builds a model."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from genai_server.errors import ConfigurationError
from genai_server.hub import builder
from genai_server.hub.builder import AUTO, GENAI, MOBIUS, Build

PYTHON = Path(sys.executable)
OLMO_2 = {"architectures": ["Olmo2ForCausalLM"]}


@pytest.fixture(autouse=True)
def both_are_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A builder of onnxruntime-genai that knows Llama only, and an environment that has everything."""
    program = tmp_path / "builder_of_llama.py"
    program.write_text('architectures[0] == "LlamaForCausalLM"', encoding="utf-8")
    monkeypatch.setattr(builder, "_BUILDER", program.stem)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(builder, "check_environment", lambda python, needed: None)


def choose(tmp_path: Path, wanted: str, config: dict[str, Any], precision: str = "int8", **others: Any) -> Build:
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    unchecked = others.pop("unchecked", False)
    order = Build(tmp_path, tmp_path / "built", precision, others.pop("device", "cpu"), **others)
    return builder.choose(order, PYTHON, wanted, unchecked=unchecked)


def test_auto_takes_mobius_for_what_the_other_builder_does_not_know(tmp_path: Path) -> None:
    assert not choose(tmp_path, AUTO, {"architectures": ["LlamaForCausalLM"]}).uses_mobius
    order = choose(tmp_path, AUTO, OLMO_2)
    assert order.uses_mobius
    assert order.options == []


def test_a_builder_that_is_named_is_taken_or_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="does not know this architecture"):
        choose(tmp_path, GENAI, OLMO_2)
    assert choose(tmp_path, MOBIUS, OLMO_2 | {"layer_types": ["full_attention"]}, "fp32").uses_mobius
    assert choose(tmp_path, MOBIUS, {"architectures": ["CohereForCausalLM"]}, unchecked=True).uses_mobius
    assert not choose(tmp_path, AUTO, {"architectures": ["CohereForCausalLM"]}, unchecked=True).uses_mobius


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"architectures": ["CohereForCausalLM"]}, "CohereForCausalLM is none of those whose graphs were compared"),
        (OLMO_2 | {"layer_types": ["sliding_attention", "full_attention"]}, "see a window only"),
        (OLMO_2 | {"sliding_window": 4096}, "see a window only"),
        (OLMO_2 | {"rope_parameters": {"rope_type": "llama3"}}, r"its rope \(llama3\) was not compared"),
        (OLMO_2 | {"quantization_config": {"quant_method": "fp8"}}, "quantized already"),
    ],
)
def test_mobius_is_refused_what_it_was_not_seen_to_build_rightly(
    tmp_path: Path, config: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        choose(tmp_path, MOBIUS, config)
    # The reason is then the one of the builder that was taken.
    with pytest.raises(ConfigurationError, match="does not know this architecture"):
        choose(tmp_path, AUTO, config)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"device": "cuda"}, "given cuda and int8"),
        ({"precision": "bf16"}, "given cpu and bf16"),
        ({"extra": ("block_size=128",)}, "given block_size=128"),
        ({"gguf": Path("model.gguf")}, "quantized already"),
    ],
)
def test_what_mobius_cannot_be_asked_for(tmp_path: Path, given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=f"--builder mobius: .*{reason}"):
        choose(tmp_path, MOBIUS, OLMO_2, **given)
