"""Models that the builder cannot build are refused by their config.json."""

from typing import Any

import pytest

from genai_server.errors import ConfigurationError
from genai_server.hub.architectures import (
    check_architecture,
    count_weights,
    has_draft_head,
    known_architectures,
)

BUILDER = 'if config.architectures[0] == "LlamaForCausalLM":\n elif config.architectures[0] == "OlmoForCausalLM" and x:'


def check(architecture: str, *, device: str = "cpu", precision: str = "int4", known: str = "", **config: Any) -> None:
    check_architecture(
        {"architectures": [architecture], **config}, known_architectures(known), precision=precision, device=device
    )


@pytest.mark.parametrize(
    ("architecture", "config", "reason"),
    [
        ("Gemma3ForConditionalGeneration", {}, "two kinds of rope"),
        ("Gemma4ForConditionalGeneration", {}, "size of its heads differs"),
        ("Gemma4UnifiedForConditionalGeneration", {}, "size of its heads differs"),
        ("PhiMoEForCausalLM", {}, "short and long factors"),
        ("Phi4MMForCausalLM", {}, "hf_remote=true"),
        ("InternLM2ForCausalLM", {}, "hf_remote=true"),
        ("GraniteMoeHybridForCausalLM", {"num_local_experts": 4}, "leaves out its experts"),
        ("GraniteMoeHybridForCausalLM", {"layer_types": ["mamba", "attention"]}, "Mamba layers"),
        ("GptOssForCausalLM", {}, "MXFP4"),
        ("SmolLM3ForCausalLM", {}, "have no rope"),
        ("SmolLM3ForCausalLM", {"no_rope_layers": [1, 0]}, "have no rope"),
    ],
)
def test_a_model_with_a_fault_is_refused(architecture: str, config: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason) as refusal:
        check(architecture, **config)
    assert refusal.value.message.startswith(f"{architecture} cannot be built for cpu in int4: ")
    assert "\n" not in refusal.value.message


def test_other_forms_of_the_same_architectures_can_be_built_and_have_a_head_for_drafts() -> None:
    check("GraniteMoeHybridForCausalLM", num_local_experts=0, layer_types=["attention"])
    check("GptOssForCausalLM", quantization_config={"quant_method": "mxfp4"})
    check("GptOssForCausalLM", precision="fp32")
    check("GptOssForCausalLM", device="directml")
    check("SmolLM3ForCausalLM", no_rope_layers=[1, 1])
    check("SmolLM3ForCausalLM", device="directml")
    check_architecture(
        {"architectures": ["Phi4MMForCausalLM"]}, (), precision="int4", device="cpu", options=["hf_remote=true"]
    )
    assert has_draft_head({"mtp_num_hidden_layers": 1})
    assert has_draft_head({"text_config": {"mtp_num_hidden_layers": 1}})
    assert not has_draft_head({"text_config": {"mtp_num_hidden_layers": 0}})


def test_an_architecture_is_refused_if_the_builder_lacks_it() -> None:
    check("LlamaForCausalLM", known=BUILDER)
    check("MixtralForCausalLM")  # a builder that does not show what it knows
    with pytest.raises(ConfigurationError, match="does not know this architecture"):
        check("MixtralForCausalLM", known=BUILDER)


@pytest.mark.parametrize("config", [{}, {"architectures": []}, {"architectures": None}, {"architectures": "x"}])
def test_a_model_without_an_architecture_is_the_builders(config: dict[str, Any]) -> None:
    check_architecture(config, {"LlamaForCausalLM"}, precision="int4", device="cpu")


SIZES = {"hidden_size": 8, "num_hidden_layers": 2, "vocab_size": 10, "num_attention_heads": 4, "intermediate_size": 16}
# Of the embeddings and the head, and of both layers: queries and outputs, keys and values, and the three matrices of
# the feed-forward network.
TABLES, LAYERS = 2 * 10 * 8, 2 * (2 * 8 * 8 + 2 * 8 * 8 + 3 * 8 * 16)


@pytest.mark.parametrize(
    ("config", "number"),
    [
        (SIZES, TABLES + LAYERS),
        ({"text_config": SIZES}, TABLES + LAYERS),
        ({**SIZES, "tie_word_embeddings": True}, TABLES // 2 + LAYERS),
        ({"text_config": SIZES, "tie_word_embeddings": True}, TABLES // 2 + LAYERS),
        ({**SIZES, "num_key_value_heads": 1}, TABLES + LAYERS - 2 * 2 * 8 * 6),
        ({**SIZES, "head_dim": 4}, TABLES + LAYERS + 2 * 4 * 8 * 8),
        ({**SIZES, "num_experts": 3}, TABLES + LAYERS + 2 * 2 * 3 * 8 * 16),
        ({**SIZES, "num_local_experts": 4, "moe_intermediate_size": 4}, TABLES + LAYERS),
        ({**SIZES, "num_attention_heads": 0}, None),
        ({"hidden_size": 8}, None),
    ],
)
def test_weights_are_counted_by_the_sizes_of_a_configuration(config: dict[str, Any], number: int | None) -> None:
    assert count_weights(config) == number
