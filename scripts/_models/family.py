"""Models with random weights of some architecture: real structure, mostly small widths.

Imported, it needs nothing but the standard library. As a program (`python -m _models.family NAME OUT`) it runs in
`.venv-models` and writes the Hugging Face directory of one of families.toml.
"""

from __future__ import annotations

import copy
import json
import sys
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

# The builder takes any linear layer with this many outputs for the head, so no other layer may have them.
VOCABULARY = 510
CONTEXT, SHORT_CONTEXT = 512, 128
END_OF_TEXT, TURN_END = 0, 2  # as in tokenizer.py
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
# What the tokenizer learns its merges from.
_TEXT = """A small model with random weights of some architecture: real structure, small widths.

Imported, it needs nothing but the standard library.
"""

COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": END_OF_TEXT,
    "eos_token_id": TURN_END,
    "pad_token_id": END_OF_TEXT,
    "tie_word_embeddings": False,
}


# In the place of a value: the setting does not exist.
_LEFT_OUT = object()


@dataclass(frozen=True)
class Family:
    """One architecture: what `structure` is checked, and the `settings` of its class `config` that are not COMMON.

    `options` go to the model builder. Large `embeddings` keep each token's own mark, so that different texts
    continue differently; where they are multiplied or tied they must be small, or every token would repeat itself.
    """

    config: str
    title: str = ""
    structure: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    # Types of layers, which repeat over all of them. Without any, `settings` say all about layers.
    layers: Sequence[str] = ()
    options: Sequence[str] = ()
    embeddings: float = 0.3
    # Where every layer has biases, large ones make all texts continue alike.
    biases: float = 0.5
    # Settings of a model for images, whose `settings` are those of its text model.
    outer: dict[str, Any] | None = None
    # How published checkpoints call their class, if Transformers has another name for it.
    architecture: str = ""
    # Special tokens behind the tokenizer's own, which the model never generates.
    marks: tuple[str, ...] = ()
    template: str = TEMPLATE


def read_families(name: str, known: dict[str, Family] | None = None) -> dict[str, Family]:
    """The families of the file NAME.toml, whose head explains it. `like` also names one of the `known` families."""
    text = Path(__file__).with_name(f"{name}.toml").read_text(encoding="utf-8")
    found: dict[str, Family] = {}
    for title, given in tomllib.loads(text).items():
        like = given.pop("like", None)
        settings: dict[str, Any] = given.pop("settings", {})
        settings |= dict.fromkeys(given.pop("none", ())) | dict.fromkeys(given.pop("left_out", ()), _LEFT_OUT)
        if rotated := given.pop("long_rope", 0):
            settings["rope_parameters"] = _long_rope(rotated) | settings.get("rope_parameters", {})
        if like is None:
            found[title] = Family(settings=settings, **given)
        else:
            base = (found | (known or {}))[like]
            found[title] = replace(base, settings=base.settings | settings, **given)
    return found


def _long_rope(rotated: int) -> dict[str, Any]:
    """Rope factors for `rotated` dimensions of a head, which change beyond SHORT_CONTEXT."""
    half = rotated // 2
    return {
        "rope_type": "longrope",
        "type": "longrope",
        "rope_theta": 10_000.0,
        "short_factor": [1.0 + 0.02 * index for index in range(half)],
        "long_factor": [1.0 + 0.3 * index for index in range(half)],
        "original_max_position_embeddings": SHORT_CONTEXT,
    }


FAMILIES = read_families("families")


def new_model(family: Family, settings: dict[str, Any], outer: dict[str, Any] | None) -> Any:
    """A model with the family's class of configuration and these settings, whose weights PyTorch has drawn."""
    import torch
    import transformers

    settings = {name: value for name, value in settings.items() if value is not _LEFT_OUT}
    kind = transformers.AutoModelForCausalLM
    if outer is not None:
        settings, kind = {"text_config": settings, **outer}, transformers.AutoModelForImageTextToText
    return kind.from_config(getattr(transformers, family.config)(**settings), dtype=torch.float32)


def make(family: Family, out: Path) -> None:
    """Write configuration, weights and tokenizer."""
    import torch

    from _models.tokenizer import save_tokenizer, train_tokenizer

    torch.manual_seed(7)
    model = new_model(family, COMMON | family.settings, family.outer)
    config = model.config
    vocabulary = config.get_text_config().vocab_size
    wide = [name for name, part in model.named_modules() if getattr(part, "out_features", 0) == vocabulary]
    assert wide == ["lm_head"], wide
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            _randomize(name, parameter, family)
        if family.marks:
            model.lm_head.weight[TURN_END + 1 :][: len(family.marks)] = 0
    model.generation_config.eos_token_id = TURN_END
    model.save_pretrained(out)
    if family.architecture:
        path = out / "config.json"
        settings = json.loads(path.read_text()) | {"architectures": [family.architecture]}
        path.write_text(json.dumps(settings))
    if getattr(config.get_text_config(), "mtp_num_hidden_layers", 0):
        add_head(config.get_text_config(), out, lambda name, parameter: _randomize(name, parameter, family))
    tokenizer = train_tokenizer([_TEXT], vocabulary, family.marks)
    save_tokenizer(tokenizer, out, family.template, config.get_text_config().max_position_embeddings)


def add_head(config: Any, out: Path, randomize: Callable[[str, Any], None]) -> None:
    """Write the weights of a Qwen 3.5's head for multi-token prediction, which transformers does not know."""
    import torch
    from safetensors.torch import save_file
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5DecoderLayer

    config = copy.deepcopy(config)
    config.layer_types, config.num_hidden_layers = ["full_attention"], 1
    size = config.hidden_size
    layer = Qwen3_5DecoderLayer(config, layer_idx=0)
    parameters = {f"layers.0.{name}": parameter for name, parameter in layer.named_parameters()}
    parameters["fc.weight"] = torch.empty(size, 2 * size)
    for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        parameters[f"{name}.weight"] = torch.zeros(size)
    with torch.no_grad():
        for name, parameter in parameters.items():
            randomize(name, parameter)
        save_file(
            {f"mtp.{name}": value.detach().clone() for name, value in parameters.items()}, out / "mtp.safetensors"
        )


def _randomize(name: str, parameter: Any, family: Family) -> None:
    """Weights with which every part of the model moves the logits, and the greedy choice has a margin."""
    if any(part in name for part in ("A_log", "dt_bias", "expert_bias")):
        parameter.normal_(std=0.3)
    elif "conv" in name and "proj" not in name:
        parameter.normal_(std=0.5)
    elif "norm" in name:
        parameter.add_(parameter.new_empty(parameter.shape).uniform_(-0.4, 0.4))
    elif parameter.ndim == 1:
        parameter.normal_(std=family.biases)
    elif "embed" in name:
        parameter.normal_(std=family.embeddings)
    else:
        # What a layer adds must outweigh the token that it started from.
        gain = 3.0 if "o_proj" in name or "down_proj" in name or "lm_head" in name else 1.5
        parameter.normal_(std=gain / parameter.shape[-1] ** 0.5)


if __name__ == "__main__":
    make(FAMILIES[sys.argv[1]], Path(sys.argv[2]))
