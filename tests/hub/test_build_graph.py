"""What build_graph.py changes of onnxruntime-genai's builder, shown with a stand-in for the builder."""

import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from genai_server.hub import gguf_blocks

NAME = "genai_server.hub.build_graph"
# Bits and block of queries, keys and values. In a file in Q4_K_M, values have more bits in some layers.
MIXED, EQUAL = [(4, 32), (4, 32), (8, 16)], [(4, 32)] * 3


class Builder:
    """Makes the products of a layer as the builder does, which sets only the paths that the layer has."""

    def __init__(self) -> None:
        self.attention_attrs = {"q_path": "", "k_path": "", "v_path": ""}

    def load_weights(self) -> None: ...
    def make_packed_matmul_float_class(self) -> None: ...
    def make_matmul_float(self) -> None: ...
    def make_embedding_lookup(self) -> None: ...
    def save_model(self) -> None: ...

    def make_attention_input_proj(self, layer_id: int, attention: Any, root_input: str) -> None:
        """Write one joined product, or three."""
        if self.is_qkv_projection_packable(layer_id, attention):
            self.attention_attrs["q_path"] = f"{root_input}/qkv"
        else:
            self.attention_attrs |= {f"{part}_path": f"{root_input}/{part}" for part in "qkv"}

    def is_qkv_projection_packable(self, layer_id: int, attention: Any) -> bool:
        """Whether the weights are of a kind that can be joined."""
        return True


@pytest.fixture
def build_graph(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The program as a module. PyTorch, which it needs for its weights, is not installed here."""
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(float16="float16", bfloat16="bfloat16"))
    monkeypatch.setitem(sys.modules, "gguf_blocks", gguf_blocks)
    monkeypatch.setitem(sys.modules, "builders.base", SimpleNamespace(Model=Builder))
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    module: ModuleType = importlib.import_module(NAME)
    monkeypatch.setitem(sys.modules, NAME, module)
    return module


@pytest.mark.slow
def test_a_layer_whose_products_are_joined_has_no_keys_of_the_layer_before(build_graph: Any) -> None:
    build_graph.write_blocks(SimpleNamespace(form=lambda weight: weight))
    builder, paths = Builder(), []
    for layer, forms in enumerate((MIXED, EQUAL, MIXED)):
        parts = zip(("q_proj", "k_proj", "v_proj"), forms, strict=True)
        attention = SimpleNamespace(**{name: SimpleNamespace(weight=form) for name, form in parts})
        builder.make_attention_input_proj(layer, attention, str(layer))
        paths.append(tuple(builder.attention_attrs.values()))
    assert paths == [("0/q", "0/k", "0/v"), ("1/qkv", "", ""), ("2/q", "2/k", "2/v")]
