"""Which decoders the batched runner can run, and what it must know of them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import GraphProto, TensorProto, helper, save

from genai_server.engine.decoder_graph import DecoderGraph, DoesNotFit, read_decoder_graph
from tests.running_server import DEMO

LAYERS = 2
NAMES = {
    "inputs": {
        "input_ids": "input_ids",
        "attention_mask": "attention_mask",
        "position_ids": "position_ids",
        "past_key_names": "past_key_values.%d.key",
        "past_value_names": "past_key_values.%d.value",
    },
    "outputs": {
        "logits": "logits",
        "present_key_names": "present.%d.key",
        "present_value_names": "present.%d.value",
    },
}


def _value(name: str, kind: int, *shape: str | int) -> Any:
    return helper.make_tensor_value_info(name, kind, list(shape))


def _graph(
    attention: tuple[str, ...] = ("GroupQueryAttention",),
    cache: int = TensorProto.FLOAT,
    logits: int = TensorProto.FLOAT,
    inputs: tuple[str, ...] = (),
    others: tuple[str, ...] = (),
    layers: int = LAYERS,
) -> GraphProto:
    """A graph of the form that the model builder makes; nobody runs it."""
    shape = ("batch", 2, "length", 64)
    parts = [f"{layer}.{part}" for layer in range(layers) for part in ("key", "value")]
    given = [_value(name, TensorProto.INT64, "batch", "n") for name in ("input_ids", "attention_mask", *inputs)]
    nodes = [
        helper.make_node(kind, ["input_ids"], [f"out.{number}"], domain="com.microsoft")
        for number, kind in enumerate((*attention, *others))
    ]
    return helper.make_graph(
        nodes,
        "decoder",
        given + [_value(f"past_key_values.{part}", cache, *shape) for part in parts],
        [_value("logits", logits, "batch", "n", 100)] + [_value(f"present.{part}", cache, *shape) for part in parts],
    )


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Makes a model directory: `graph` is what _graph takes, the rest changes the configuration."""

    def write_model(graph: dict[str, Any] | None = None, *, shared: bool | None = True, **decoder: Any) -> Path:
        save(helper.make_model(_graph(**(graph or {}))), str(tmp_path / "model.onnx"))
        described = NAMES | {
            "filename": "model.onnx",
            "head_size": 64,
            "num_hidden_layers": LAYERS,
            "num_key_value_heads": 2,
        }
        config = {
            "model": {"decoder": described | decoder},
            "search": {} if shared is None else {"past_present_share_buffer": shared},
        }
        (tmp_path / "genai_config.json").write_text(json.dumps(config), encoding="utf-8")
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
    )
    assert graph.bytes_per_token == 2 * layers * config["num_key_value_heads"] * config["head_size"] * 4


def test_a_graph_as_the_model_builder_makes_it_fits(write: Callable[..., Path]) -> None:
    graph = read_decoder_graph(write())
    assert graph.past_names == (
        "past_key_values.0.key",
        "past_key_values.0.value",
        "past_key_values.1.key",
        "past_key_values.1.value",
    )
    assert graph.present_names == ("present.0.key", "present.0.value", "present.1.key", "present.1.value")
    assert (graph.num_kv_heads, graph.head_size, graph.position_ids) == (2, 64, None)


def test_positions_are_given_to_a_graph_that_takes_them(write: Callable[..., Path]) -> None:
    assert read_decoder_graph(write({"inputs": ("position_ids",)})).position_ids == "position_ids"


def test_a_half_precision_cache_takes_half_the_bytes_and_leaves_the_logits_as_they_are(
    write: Callable[..., Path],
) -> None:
    whole = read_decoder_graph(write()).bytes_per_token
    graph = read_decoder_graph(write({"cache": TensorProto.FLOAT16}))
    assert (graph.cache_type, graph.logits_type) == (np.float16, np.float32)
    assert graph.bytes_per_token * 2 == whole == 2 * LAYERS * 2 * 64 * 4


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        ({"attention": ()}, "its attention is not GroupQueryAttention"),
        ({"attention": ("MultiHeadAttention",)}, "its attention is not GroupQueryAttention"),
        ({"attention": ("GroupQueryAttention", "Attention")}, "partly Attention$"),
        ({"attention": ("GroupQueryAttention", "LinearAttention", "Attention")}, "partly Attention, LinearAttention$"),
        ({"others": ("If",)}, "branches on the length of the whole batch"),
        ({"inputs": ("beam_indices",)}, "inputs that the runner does not know: beam_indices"),
        ({"inputs": ("z", "conv_state")}, "does not know: conv_state, z"),
        ({"cache": TensorProto.INT8}, "its cache is of type INT8"),
        ({"cache": TensorProto.BFLOAT16}, "its cache is of type BFLOAT16"),
        ({"layers": 1}, "lacks past_key_values.1.key, past_key_values.1.value, present.1.key, present.1.value"),
    ],
)
def test_a_graph_that_does_not_fit_says_why(write: Callable[..., Path], graph: dict[str, Any], reason: str) -> None:
    with pytest.raises(DoesNotFit, match=reason):
        read_decoder_graph(write(graph))


@pytest.mark.parametrize("shared", [False, None])
def test_a_cache_that_is_not_kept_in_place_does_not_fit(write: Callable[..., Path], shared: bool | None) -> None:
    with pytest.raises(DoesNotFit, match="past_present_share_buffer is false"):
        read_decoder_graph(write(shared=shared))


@pytest.mark.parametrize("decoder", [{"pipeline": []}, {"sliding_window": {"window_size": 128}}])
def test_what_onnxruntime_genai_takes_apart_itself_does_not_fit(
    write: Callable[..., Path], decoder: dict[str, Any]
) -> None:
    with pytest.raises(DoesNotFit, match="pipeline or windowed"):
        read_decoder_graph(write(**decoder))
