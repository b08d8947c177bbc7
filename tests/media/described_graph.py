"""A graph that is only described."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onnx import helper, save


def write_graph(path: Path, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
    """A graph whose outputs are of a custom operator: no session can load it, so that only its description is read."""
    made = [helper.make_tensor_value_info(name, *about) for name, about in inputs.items()]
    given = [helper.make_tensor_value_info(name, *about) for name, about in outputs.items()]
    node = helper.make_node("Nowhere", list(inputs), list(outputs), domain="nowhere")
    save(helper.make_model(helper.make_graph([node], "graph", made, given), ir_version=10), str(path))


def write_tokenizer(folder: Path, special: Mapping[str, int]) -> None:
    """The demo model's tokenizer with more special tokens, which have these ids."""
    tokenizer, config = (json.loads((_DEMO / name).read_text(encoding="utf-8")) for name in _FILES)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = [{"id": id, "content": text, **flags} for text, id in special.items()]
    tokenizer["added_tokens"] += added
    config["added_tokens_decoder"] = config.get("added_tokens_decoder", {}) | {str(t["id"]): t for t in added}
    for name, content in zip(_FILES, (tokenizer, config), strict=True):
        (folder / name).write_text(json.dumps(content), encoding="utf-8")


_DEMO = Path(__file__).parents[2] / "models" / "demo"
_FILES = ("tokenizer.json", "tokenizer_config.json")
