"""Which decoders the batched runner supports, and what it reads of them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import GraphProto, TensorProto, helper, save

from genai_server.engine.graph_description import DecoderGraph, DoesNotFit
from genai_server.engine.model.graph_reader import read_decoder_graph
from tests.model_edits import edited_config
from tests.running_server import DEMO

LAYERS = 2

Write = Callable[..., Path]


def _value(name: str, kind: int, *shape: str | int) -> Any:
    return helper.make_tensor_value_info(name, kind, list(shape))


def _graph(
    attention: tuple[str, ...] = ("GroupQueryAttention",),
    cache: int = TensorProto.FLOAT,
    inputs: tuple[str, ...] = (),
    layers: int = LAYERS,
    attributes: Any = None,
    more: tuple[list[Any], list[Any]] = ([], []),
) -> GraphProto:
    """A graph in the form of the model builder; it is never run. `more` are additional nodes and initializers."""
    shape = ("batch", 2, "length", 64)
    parts = [f"{layer}.{part}" for layer in range(layers) for part in ("key", "value")]
    given = [_value(name, TensorProto.INT64, "batch", "n") for name in ("input_ids", "attention_mask", *inputs)]
    nodes = [
        helper.make_node(kind, ["input_ids"], [f"out.{number}"], domain="com.microsoft", **(attributes or {}))
        for number, kind in enumerate(attention)
    ]
    logits = _value("logits", TensorProto.FLOAT, "batch", "n", 100)
    return helper.make_graph(
        nodes + more[0],
        "decoder",
        given + [_value(f"past_key_values.{part}", cache, *shape) for part in parts],
        [logits, *(_value(f"present.{part}", cache, *shape) for part in parts)],
        more[1],
    )


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a model directory: `graph` holds arguments of _graph, the rest changes the configuration."""

    def write_model(graph: dict[str, Any] | None = None, *, shared: bool | None = True, **decoder: Any) -> Path:
        save(helper.make_model(_graph(**(graph or {}))), str(tmp_path / "model.onnx"))
        shutil.copy(DEMO / "genai_config.json", tmp_path)
        with edited_config(tmp_path) as config:
            config["model"]["decoder"]["inputs"]["position_ids"] = "position_ids"
            config["model"]["decoder"] |= {"num_hidden_layers": LAYERS} | decoder
            config["search"] = {} if shared is None else {"past_present_share_buffer": shared}
        return tmp_path

    return write_model


def test_the_demo_model_fits_with_its_names_and_shapes() -> None:
    graph = read_decoder_graph(DEMO)
    config = json.loads((DEMO / "genai_config.json").read_text(encoding="utf-8"))["model"]["decoder"]
    layers = config["num_hidden_layers"]
    assert graph == DecoderGraph(
        path=DEMO / "model.onnx",
        input_ids="input_ids",
        attention_mask="attention_mask",
        position_ids=None,
        logits="logits",
        past_names=tuple(f"past_key_values.{n}.{part}" for n in range(layers) for part in ("key", "value")),
        present_names=tuple(f"present.{n}.{part}" for n in range(layers) for part in ("key", "value")),
        num_kv_heads=config["num_key_value_heads"],
        head_size=config["head_size"],
        cache_type=np.float32,
        logits_type=np.float32,
        has_packed_products_only=True,
    )
    assert graph.bytes_per_token == 2 * layers * config["num_key_value_heads"] * config["head_size"] * 4


def test_a_graph_as_the_model_builder_makes_it_fits(write: Write) -> None:
    graph = read_decoder_graph(write())
    parts = ("0.key", "0.value", "1.key", "1.value")
    assert graph.past_names == tuple(f"past_key_values.{part}" for part in parts)
    assert graph.present_names == tuple(f"present.{part}" for part in parts)
    assert (graph.num_kv_heads, graph.head_size, graph.position_ids) == (2, 64, None)
    assert read_decoder_graph(write({"inputs": ("position_ids",)})).position_ids == "position_ids"


def test_adapters_of_another_form_leave_a_graph_its_batch(write: Write, adapted: Path) -> None:
    empty = helper.make_tensor("lora_A", TensorProto.INT64, [8, 0], [])
    assert read_decoder_graph(write({"inputs": ("lora_A",), "more": ([], [empty])})).low_rank_paths == ()
    assert len(read_decoder_graph(adapted).low_rank_paths) > 1


def test_half_precision_cache_halves_the_bytes_per_token_only(write: Write) -> None:
    whole = read_decoder_graph(write()).bytes_per_token
    graph = read_decoder_graph(write({"cache": TensorProto.FLOAT16}))
    assert (graph.cache_type, graph.logits_type) == (np.float16, np.float32)
    assert graph.bytes_per_token * 2 == whole == 2 * LAYERS * 2 * 64 * 4


@pytest.mark.parametrize(
    ("graph", "changed", "reason"),
    [
        ({"attention": ()}, {}, "its attention is not GroupQueryAttention"),
        ({"attention": ("MultiHeadAttention",)}, {}, "its attention is not GroupQueryAttention"),
        ({"attention": ("GroupQueryAttention", "Attention")}, {}, "partly Attention$"),
        (
            {"attention": ("GroupQueryAttention", "PagedAttention", "Attention")},
            {},
            "partly Attention, PagedAttention$",
        ),
        ({"inputs": ("beam_indices",)}, {}, "inputs that the runner does not know: beam_indices"),
        ({"inputs": ("z", "conv_state")}, {}, "does not know: conv_state, z"),
        ({"cache": TensorProto.INT8}, {}, "its cache is of type INT8"),
        ({"cache": TensorProto.BFLOAT16}, {}, "its cache is of type BFLOAT16"),
        ({"layers": 1}, {}, "lacks past_key_values.1.key, past_key_values.1.value, present.1.key, present.1.value"),
        ({}, {"shared": False}, "past_present_share_buffer is false"),
        ({}, {"shared": None}, "past_present_share_buffer is false"),
        ({}, {"pipeline": []}, "is a pipeline"),
        ({}, {"sliding_window": {"window_size": 128}}, "window by window"),
        ({}, {"sliding_window": {"slide_key_value_cache": True, "slide_inputs": False}}, "window by window"),
        ({}, {"sliding_window": {"slide_key_value_cache": False, "slide_inputs": True}}, "window by window"),
        ({}, {"num_key_value_heads": 4}, "caches differ in shape"),
    ],
)
def test_a_graph_that_does_not_fit_says_why(
    write: Write, graph: dict[str, Any], changed: dict[str, Any], reason: str
) -> None:
    with pytest.raises(DoesNotFit, match=reason):
        read_decoder_graph(write(graph, **changed))


@pytest.mark.parametrize(
    ("attributes", "window"),
    [
        ({}, 0),
        ({"local_window_size": -1}, 0),
        ({"local_window_size": 32}, 0),  # only in the mask
        ({"local_window_size": 32, "sliding_window_cache": 0}, 0),
        ({"local_window_size": 32, "sliding_window_cache": 1}, 32),
    ],
)
def test_window_is_that_of_layers_that_keep_only_a_window(
    write: Write, attributes: dict[str, int], window: int
) -> None:
    sliding = {"window_size": 32, "slide_key_value_cache": False, "slide_inputs": False}
    assert read_decoder_graph(write({"attributes": attributes}, sliding_window=sliding)).window == window


def _switching(operators: tuple[str, ...], limit: int = 128, index: int = 1, inside: str = "Constant") -> Any:
    """Nodes and constants of a rope that is selected by the width of the attention mask; `operators` lead to the If."""
    branch = helper.make_graph(
        [helper.make_node(inside, [], ["rope"], value=helper.make_tensor("", TensorProto.FLOAT, [1], [1.0]))],
        "branch",
        [],
        [_value("rope", TensorProto.FLOAT, 1)],
    )
    constants = {"Gather": index, "Greater": limit}
    nodes, last = [], "attention_mask"
    for operator in operators:
        second = [f"constant.{operator}"] if operator in constants else []
        nodes.append(helper.make_node(operator, [last, *second], [f"{operator}.0"]))
        last = f"{operator}.0"
    nodes.append(helper.make_node("If", [last], ["chosen"], then_branch=branch, else_branch=branch))
    tensors = [
        helper.make_tensor(f"constant.{operator}", TensorProto.INT64, [], [value])
        for operator, value in constants.items()
        if operator in operators
    ]
    return nodes, tensors


WIDTH_IS_GREATER = ("Shape", "Gather", "Greater")


@pytest.mark.parametrize("as_nodes", [False, True])
def test_rope_that_switches_by_length_bounds_the_batch(write: Write, as_nodes: bool) -> None:
    nodes, tensors = _switching(WIDTH_IS_GREATER, limit=4096)
    if as_nodes:  # the model builder writes nodes; they are initializers once the graph is optimized
        nodes = [helper.make_node("Constant", [], [tensor.name], value=tensor) for tensor in tensors] + nodes
        tensors = []
    assert read_decoder_graph(write({"more": (nodes, tensors)})).switches_at == 4096
    assert read_decoder_graph(write()).switches_at is None


@pytest.mark.parametrize(
    "more",
    [
        _switching(("Shape", "Gather")),
        _switching(("Greater",)),
        _switching(("Shape", "Gather", "Less")),
        _switching(WIDTH_IS_GREATER, index=0),
        _switching(WIDTH_IS_GREATER, inside="RandomNormal"),
        (_switching(WIDTH_IS_GREATER)[0], []),
    ],
)
def test_any_other_branch_does_not_fit(write: Write, more: Any) -> None:
    with pytest.raises(DoesNotFit, match="rows of a batch might depend on each other"):
        read_decoder_graph(write({"more": more}))
