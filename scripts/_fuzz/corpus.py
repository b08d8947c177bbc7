"""Valid bodies of the POST endpoints, for mutations to begin with: those of corpus.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

# Placeholders for what the server stores, as long as the identifiers that it assigns: a request keeps its length.
CONVERSATION = "conv_" + "c" * 48
RESPONSE = "resp_" + "d" * 48
ITEM = "msg_" + "e" * 48
_NAMED = {
    "$conversation": CONVERSATION,
    "$response": RESPONSE,
    "$item": ITEM,
    "$name121": "n" * 121,
    "$name128": "n" * 128,
    "$text3000": "x" * 3000,
}


def _bodies() -> dict[str, list[dict[str, Any]]]:
    text = Path(__file__).with_name("corpus.yaml").read_text(encoding="utf-8")
    for name, value in _NAMED.items():
        text = text.replace(name, value)
    bodies: dict[str, list[dict[str, Any]]] = yaml.safe_load(text)["bodies"]
    references = [{"type": "item_reference", "id": ITEM}] * 300
    bodies["/v1/responses"].append({"input": references, "store": False, "max_output_tokens": 4})
    return bodies


# By path. Bodies may share their parts, so that whoever changes one copies it first.
BODIES = _bodies()
