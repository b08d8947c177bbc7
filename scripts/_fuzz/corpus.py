"""Valid requests, for mutations to begin with: those of corpus.yaml."""

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
    "$cookie": "a=b; " * 500,
}
_text = Path(__file__).with_name("corpus.yaml").read_text(encoding="utf-8")
for _name, _value in _NAMED.items():
    _text = _text.replace(_name, _value)
_read: dict[str, Any] = yaml.safe_load(_text)

# Bodies of the POST endpoints by path. They may share their parts, so that whoever changes one copies it first.
BODIES: dict[str, list[dict[str, Any]]] = _read["bodies"]
_REFERENCES = [{"type": "item_reference", "id": ITEM}] * 300
BODIES["/v1/responses"].append({"input": _REFERENCES, "store": False, "max_output_tokens": 4})
# Requests with an image, each with `path`, `field` and `body`.
IMAGES: list[dict[str, Any]] = _read["images"]
# The right one first, and others.
CONTENT_TYPES: list[str] = _read["content_types"]
ODD_HEADERS: list[str] = _read["odd_headers"]
