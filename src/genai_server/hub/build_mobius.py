"""Builds a decoder with mobius, a model builder by Microsoft. This is a program for the Python interpreter that
`export` uses.

    python build_mobius.py SOURCE TARGET fp32|int8|int4

mobius (the package mobius-onnx) writes graphs with 32-bit weights. This program quantizes them in the same way as
`export` does otherwise: to int8, or to int4 by the method k_quant with 8 bits for the head and the most sensitive
layers, in blocks of 32 weights and with 8-bit activations. The routers of mixture-of-experts models and the embedding
keep 32 bits. The program imports no module of this package, because the package may be missing in the interpreter's
environment.
"""

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import onnx

_BLOCK = 32
_GRAPH, _CONFIG = "model.onnx", "genai_config.json"
_CACHE = re.compile(r"past_key_values\.(\d+)\.key$")
_LAYER = re.compile(r"model/layers\.(\d+)/")
# Parts of the names of products: routers of experts, the head, and what k_quant_mixed gives 8 bits in some layers.
_ROUTERS, _HEAD, _JOINED = ("/mlp/gate/", "/mlp/shared_expert_gate/"), "lm_head/", "/qkv_proj/"
_SENSITIVE = ("/v_proj/", _JOINED, "/down_proj/")
# onnxruntime-genai's name for decoders of any architecture.
_ANY_DECODER = "decoder"
# Names of sampling defaults that a generation_config.json and a genai_config.json share.
_SAMPLING = ("do_sample", "temperature", "top_k", "top_p", "repetition_penalty", "min_p")
# Those of a generation_config.json that leaves them out, as onnxruntime-genai's builder has them.
_SAMPLING_DEFAULTS = {"do_sample": False, "temperature": 1.0, "top_k": 50, "top_p": 1.0}
_SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id")


def main() -> None:
    """Build the model directory with the source, target and precision that the command line names."""
    from mobius.__main__ import main as run_mobius

    source, target, precision = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    print("Reading weights", flush=True)
    folder = target if precision == "fp32" else target / "full"
    options = ["--config", str(source), str(folder), "--dtype", "f32", "--ep", "cpu", "--runtime", "ort-genai"]
    run_mobius(["build", *options])
    describe(source, folder)
    if folder != target:
        print(f"Rounding weights to {precision}", flush=True)
        quantize(folder / _GRAPH, target / _GRAPH, bits=int(precision.removeprefix("int")))
        for path in folder.iterdir():
            if not path.name.startswith(_GRAPH):
                shutil.move(path, target / path.name)
        shutil.rmtree(folder)
    print("Saving ONNX model", flush=True)


def describe(source: Path, folder: Path) -> None:
    """Add to genai_config.json in `folder` what mobius leaves out: context length, end tokens and sampling defaults."""
    path = folder / _CONFIG
    config = json.loads(path.read_text(encoding="utf-8"))
    model, search = config["model"], config["search"]
    model["type"] = _ANY_DECODER
    source_config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    generation = source / "generation_config.json"
    chosen = json.loads(generation.read_text(encoding="utf-8")) if generation.is_file() else {}
    context = (source_config.get("text_config") or source_config).get("max_position_embeddings")
    if context:
        model["context_length"] = search["max_length"] = context
    model |= {name: value for name in _SPECIAL if (value := chosen.get(name, source_config.get(name))) is not None}
    search |= _SAMPLING_DEFAULTS | {name: chosen[name] for name in _SAMPLING if chosen.get(name) is not None}
    path.write_text(json.dumps(config, indent=4), encoding="utf-8")


def quantize(graph: Path, target: Path, bits: int) -> None:
    """Write a copy of the ONNX graph `graph` to `target` in which the weights of matrix products have `bits` bits, 8 or
    4. With 4 bits, the most sensitive matrices get 8 (see `is_sensitive`).
    """
    from onnxruntime.quantization.matmul_nbits_quantizer import KQuantWeightOnlyQuantConfig, MatMulNBitsQuantizer

    model = onnx.load(str(graph))
    name_joined(model.graph)
    names = [node.name for node in model.graph.node if node.op_type == "MatMul"]
    wide = {name: {"bits": 8} for name in names if bits == 8 or is_sensitive(name, count_layers(names))}
    routers = [name for name in names if any(part in name for part in _ROUTERS)]
    quantizer: Any = MatMulNBitsQuantizer(
        model,
        block_size=_BLOCK,
        is_symmetric=True,
        accuracy_level=4,
        nodes_to_exclude=routers,
        algo_config=KQuantWeightOnlyQuantConfig(customized_weight_config=wide),
    )
    quantizer.process()
    quantizer.model.save_model_to_file(str(target), use_external_data_format=True)


def name_joined(graph: Any) -> None:
    """Rename those matrix products of the graph that compute queries, keys and values at once, so that their names
    contain the number of the layer, which mobius leaves out.
    """
    makers = {output: node for node in graph.node for output in node.output}
    for node in graph.node:
        if node.op_type == "GroupQueryAttention" and not node.input[1]:
            maker = makers[node.input[0]]
            while maker.op_type != "MatMul":  # a bias is added
                maker = makers[maker.input[0]]
            layer = _CACHE.match(node.input[3])
            if layer is not None:
                maker.name = f"model/layers.{layer[1]}/self_attn{_JOINED}{maker.name}"


def count_layers(names: list[str]) -> int:
    """Return the number of layers of a decoder, as found in `names`, the names of its matrix products."""
    return 1 + max((int(match[1]) for name in names if (match := _LAYER.match(name))), default=-1)


def is_sensitive(name: str, layers: int) -> bool:
    """Whether the matrix product named `name` gets weights of 8 bits instead of 4, because rounding it to 4 bits would
    change answers most. The choice is that of the quantization method k_quant_mixed.

    It is made for the head, and for the value and down projections in the first and last eighth of the `layers` layers
    and in every third layer between.
    """
    if name.startswith(_HEAD):
        return True
    match = _LAYER.match(name)
    if match is None or not any(part in name for part in _SENSITIVE):
        return False
    layer, eighth = int(match[1]), layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


if __name__ == "__main__":
    main()
