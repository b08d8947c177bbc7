"""Runs onnxruntime-genai's model builder with additions. This is a program for the Python interpreter that `export`
uses.

    python build_graph.py [--gguf FILE | --eight-bit-ends] ARGUMENTS...

ARGUMENTS are those of the model builder. With --gguf, the builder's input is the model that Transformers unpacks from
FILE. A matrix that FILE stores in blocks of quantized weights is written to the graph with these blocks (MatMulNBits),
so that nothing is quantized a second time; it is first compared with the unpacked matrix. With --eight-bit-ends, the
embedding and the output head have weights of 8 bits (without this option, only the head), which are stored once if both
are the same matrix. The program also corrects what the builder reads wrongly with Transformers 5. Of this package it
imports only gguf_blocks.py next to it, because the package may be missing in the interpreter's environment.
"""

import importlib
import runpy
import sys
from collections import Counter
from functools import partialmethod
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir
import torch

if TYPE_CHECKING:
    from genai_server.hub import gguf_blocks
else:
    import gguf_blocks

_BUILDER = "onnxruntime_genai.models.builder"
# Of a matrix's largest magnitude: the unpacked weights are rounded to 16 bits.
_TOLERANCE = 2e-3
# Rows that are compared at once.
_ROWS = 4096
# Of weights that are rounded to 8 bits.
_BLOCK = 32
# Types of tensors whose numbers need no blocks.
_FLOATS = ("F32", "F16", "BF16")
_HALVES = (torch.float16, torch.bfloat16)


def main() -> None:
    """Run onnxruntime-genai's model builder with the arguments of the command line, after patching it as the options
    --gguf and --eight-bit-ends say.
    """
    arguments = sys.argv[1:]
    importlib.import_module(_BUILDER.rpartition(".")[0])  # it lets its parts be imported without their package
    correct_gemma_3()
    if arguments[0] == "--gguf":
        write_blocks(GgufWeights(Path(arguments[1])))
        arguments = arguments[2:]
    elif arguments[0] == "--eight-bit-ends":
        write_blocks(EightBitEnds())
        arguments = arguments[1:]
    sys.argv = [_BUILDER, *arguments]
    runpy.run_module(_BUILDER, run_name="__main__", alter_sys=True)


def correct_gemma_3() -> None:
    """Patch the builder so that it can read Gemma 3's two sets of rope (rotary position embedding) parameters, for
    layers with full and with sliding-window attention, in the form in which Transformers 5 stores them.
    """
    gemma: Any = importlib.import_module("builders.gemma")
    initialize = gemma.Gemma3Model.__init__

    def with_one_rope(self: Any, config: Any, *arguments: Any) -> None:
        ropes = getattr(config, "rope_parameters", None) or {}
        if "full_attention" in ropes:
            config.rope_parameters = ropes["full_attention"]
            config.rope_theta = ropes["full_attention"]["rope_theta"]
            config.rope_local_base_freq = ropes["sliding_attention"]["rope_theta"]
        initialize(self, config, *arguments)
        self.embed_attrs["scale"] = float(np.float32(self.hidden_size) ** np.float32(0.5))  # not to two decimals

    gemma.Gemma3Model.__init__ = with_one_rope


class EightBitEnds:
    """The source of quantized weights for the option --eight-bit-ends: gives the model builder the embedding and the
    output head of a model as blocks of 8-bit weights. `write_blocks` patches the builder so that it asks this object.
    """

    keeps_floats = False

    def __init__(self) -> None:
        self._addresses: set[int] = set()
        self.rounded: Counter[str] = Counter()

    def find(self, model: Any) -> None:
        """Remember the embedding and the output head of the PyTorch model `model`, so that `form` recognizes them.

        A matrix is skipped if its row length is no multiple of the block size.
        """
        for module in (model.get_input_embeddings(), model.get_output_embeddings()):
            if module is not None and module.weight.shape[1] % _BLOCK == 0:
                self._addresses.add(module.weight.data_ptr())

    def form(self, weight: Any) -> tuple[int, int] | None:
        """Return the number of bits and the block size with which the matrix `weight` is to be written; None if it is
        neither the embedding nor the head that `find` has found.
        """
        return (8, _BLOCK) if weight.data_ptr() in self._addresses else None

    def blocks(self, weight: Any) -> "gguf_blocks.Blocks":
        """Quantize the embedding or the output head (a matrix for which `form` returns a value) to 8 bits, and return
        its blocks.
        """
        parts = [weight[start : start + _ROWS].detach().float().numpy() for start in range(0, len(weight), _ROWS)]
        return gguf_blocks.concatenated([gguf_blocks.eight_bits(part) for part in parts])


class GgufWeights:
    """The source of quantized weights for the option --gguf: gives the model builder the blocks of quantized weights in
    a GGUF file for the matrices of a model that Transformers has unpacked from this file. `write_blocks` patches the
    builder so that it asks this object.
    """

    keeps_floats = True

    def __init__(self, path: Path) -> None:
        from gguf import MODEL_ARCH_NAMES, GGUFReader, get_tensor_name_map

        reader: Any = GGUFReader(path)
        architecture = str(reader.get_field("general.architecture").contents())
        kind = next(kind for kind, name in MODEL_ARCH_NAMES.items() if name == architecture)
        layers = int(reader.get_field(f"{architecture}.block_count").contents())
        self._names = get_tensor_name_map(kind, layers)
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        # The tensor, the order of its rows and its unpacked form, by the address of that form.
        self._found: dict[int, tuple[Any, Any, Any]] = {}
        self.rounded: Counter[str] = Counter()

    def find(self, model: Any) -> None:
        """Find for each matrix of the PyTorch model `model` the tensor of the file from which it was unpacked, so that
        `form` and `blocks` can use it.

        This changes the model: parameters that were rounded to 16 bits, but have 32 bits in the file, get the values in
        the file. Raises SystemExit if a tensor is not what the matrix was unpacked from.
        """
        heads = model.config.num_attention_heads, model.config.num_key_value_heads
        for name, parameter in model.named_parameters():
            stem, _, suffix = name.rpartition(".")
            matched = self._names.get_name(stem)
            tensor = self._tensors.get(f"{matched}.{suffix}")
            if tensor is None:
                continue
            is_wide = tensor.tensor_type.name == "F32" and parameter.dtype != torch.float32
            if parameter.ndim == 2:
                order = self._order(tensor, parameter, heads)
                if is_wide:
                    values = np.array(self._rows(tensor, order, slice(None)), np.float32)
                    self._widen(parameter, torch.from_numpy(values))
                self._found[parameter.untyped_storage().data_ptr()] = tensor, order, parameter
            elif is_wide:
                values = np.array(tensor.data, np.float32)
                self._widen(parameter, torch.from_numpy(values).reshape(parameter.shape))

    def _order(self, tensor: Any, parameter: Any, heads: tuple[int, int]) -> Any:
        """Return the indexes that bring the rows of a tensor in the file into the order of `parameter`, the matrix that
        Transformers has unpacked from it; None if both have the same order.

        llama.cpp interleaves the two halves of each query head and of each key head; `heads` has the number of query
        heads and that of key heads. Raises SystemExit if the rows differ in every known order.
        """
        num_rows = len(parameter)
        orders: list[Any] = [None]
        for number in heads if num_rows > 1 else ():
            if num_rows % (2 * number) == 0:
                orders.append(np.arange(num_rows).reshape(number, -1, 2).swapaxes(1, 2).reshape(-1))
        for order in orders:
            if is_equal(self._values(tensor, order, slice(0, _ROWS)), parameter[:_ROWS]):
                return order
        raise SystemExit(f"{tensor.name} of the file is not what Transformers made of it")

    def _widen(self, parameter: Any, values: Any) -> None:
        """Give a parameter of the model that was rounded to 16 bits the 32-bit numbers `values` from the file.

        Files of Gemma models have some values increased by 1; these are decreased again. Nothing happens if rounding
        `values` does not give the parameter.
        """
        for wide in (values, values - 1):
            if torch.equal(wide.to(parameter.dtype), parameter):
                parameter.data = wide
                return

    def _rows(self, tensor: Any, order: Any, rows: slice) -> Any:
        data = tensor.data.reshape(-1, tensor.data.shape[-1])
        return data[rows] if order is None else data[order[rows]]

    def _values(self, tensor: Any, order: Any, rows: slice) -> Any:
        from gguf.quants import dequantize

        return dequantize(np.ascontiguousarray(self._rows(tensor, order, rows)), tensor.tensor_type)

    def form(self, weight: Any) -> tuple[int, int] | None:
        """Return the number of bits and the block size with which the matrix `weight` is to be written; None if the
        file has floating-point weights for it, or no tensor.

        `weight` may also be some rows of a matrix of the model.
        """
        stored = self._found.get(weight.untyped_storage().data_ptr())
        if stored is None or stored[0].tensor_type.name in _FLOATS:
            return None
        return gguf_blocks.form(stored[0].tensor_type.name) or (8, _BLOCK)

    def blocks(self, weight: Any) -> "gguf_blocks.Blocks":
        """Return the file's blocks of quantized weights for the matrix `weight`, for which `form` returns a value.

        If the type of the tensor cannot be converted without loss (see gguf_blocks.py), its weights are rounded to 8
        bits. Raises SystemExit if the blocks do not have the values of the unpacked matrix.
        """
        tensor, order, matrix = self._found[weight.untyped_storage().data_ptr()]
        first = weight.storage_offset() // matrix.shape[1]
        kind = tensor.tensor_type.name
        parts = []
        for start in range(first, first + len(weight), _ROWS):
            rows = slice(start, min(start + _ROWS, first + len(weight)))
            if gguf_blocks.form(kind) is None:
                parts.append(gguf_blocks.eight_bits(self._values(tensor, order, rows)))
                continue
            parts.append(gguf_blocks.read(kind, self._rows(tensor, order, rows)))
            if not is_equal(parts[-1].values(), matrix[rows]):
                raise SystemExit(f"{tensor.name} of the file is not what Transformers made of it")
        if gguf_blocks.form(kind) is None:
            self.rounded[kind] += 1
        return gguf_blocks.concatenated(parts)


def is_equal(values: Any, weight: Any) -> bool:
    """Whether two matrices of weights have the same shape and equal values, except for differences that rounding to 16
    bits explains. `values` is a numpy array, `weight` a PyTorch tensor.
    """
    unpacked = weight.detach().float().numpy()
    if values.shape != unpacked.shape:
        return False
    return bool(np.abs(values - unpacked).max() <= _TOLERANCE * np.abs(unpacked).max())


def write_blocks(weights: "EightBitEnds | GgufWeights") -> None:
    """Patch the methods of onnxruntime-genai's model builder so that it writes each matrix for which `weights.form`
    returns a value as the blocks of quantized weights that `weights.blocks` returns.
    """
    model: Any = importlib.import_module("builders.base").Model
    for function in (
        *(load_weights, make_attention_input_proj, is_qkv_projection_packable, make_packed_matmul_float_class),
        *(make_matmul_float, make_embedding_lookup, save_model),
    ):
        original = getattr(model, function.__name__)
        setattr(model, function.__name__, partialmethod(function, original, weights))


# Methods of the builder in another form. Each gets the builder, the original method and the weights first.


def load_weights(model: Any, original: Any, weights: Any, *arguments: Any) -> Any:
    """Replacement for the model builder's method of this name: load the model with `original`, let `weights` find the
    matrices that are to be written as blocks, and return the loaded model.
    """
    loaded = original(model, *arguments)
    weights.find(loaded)
    return loaded


def make_attention_input_proj(model: Any, original: Any, _weights: Any, *arguments: Any, **kwargs: Any) -> None:
    """Replacement for the model builder's method that writes the projections to queries, keys and values of a layer.
    Before it calls `original`, it clears the names of the key and the value that the builder has kept from the previous
    layer.

    The builder keeps these names when it joins the three projections, which it does in all layers or in none. GGUF
    files of mixed types (Q4_K_M) have layers of both kinds.
    """
    model.attention_attrs |= {"k_path": "", "v_path": ""}
    original(model, *arguments, **kwargs)


def is_qkv_projection_packable(model: Any, original: Any, weights: Any, layer_id: int, attention: Any) -> bool:
    """Replacement for the model builder's method that decides whether a layer's projections to queries, keys and values
    are joined into one matrix. Returns False also if the blocks of the three have different numbers of bits or block
    sizes.
    """
    forms = {weights.form(part.weight) for part in (attention.q_proj, attention.k_proj, attention.v_proj)}
    return len(forms) == 1 and bool(original(model, layer_id, attention))


def make_packed_matmul_float_class(model: Any, original: Any, weights: Any, *parts: Any, **kwargs: Any) -> Any:
    """Replacement for the model builder's method that joins several matrices into one. Returns the joined matrix of
    `original`, with the single matrices in its attribute `parts`, so that their blocks can be found later.
    """
    joined = original(model, *parts, **kwargs)
    joined.parts = [part.weight for part in parts]
    return joined


def make_matmul_float(
    model: Any, original: Any, weights: Any, matmul: Any, name: str, root_input: str, **kwargs: Any
) -> str:
    """Replacement for the model builder's method that writes a matrix product to the graph: with blocks of quantized
    weights, or with the 16-bit weights of a GGUF file, and only otherwise with `original`. Returns the name of the
    graph's node.

    `matmul` has the matrix, and `root_input` is the name of the value that is multiplied by it.
    """
    parts = getattr(matmul, "parts", [matmul.weight])
    if None not in map(weights.form, parts):
        blocks = gguf_blocks.concatenated([weights.blocks(part) for part in parts])
        return str(model.make_matmul_nbits(as_quantized(blocks), name, root_input, **kwargs))
    if weights.keeps_floats and matmul.weight.dtype in _HALVES:
        return make_widened(model, matmul.weight, name, root_input, **kwargs)
    return str(original(model, matmul, name, root_input, **kwargs))


def make_embedding_lookup(model: Any, original: Any, weights: Any, embedding: Any, basename: str, lm_head: Any) -> str:
    """Replacement for the model builder's method that writes the embedding lookup to the graph: with blocks of
    quantized weights, or with the 16-bit weights of a GGUF file, and only otherwise with `original`. Returns the name
    of the lookup's output in the graph.

    `embedding` is the matrix, and `basename` the beginning of the names of the graph's nodes.
    """
    if weights.form(embedding) is None and weights.keeps_floats and embedding.dtype in _HALVES:
        return make_widened_lookup(model, embedding, basename)
    if weights.form(embedding) is None:
        return str(original(model, embedding, basename, lm_head))
    is_tied = lm_head is not None and lm_head.weight.data_ptr() == embedding.data_ptr()
    return look_up(model, embedding, basename, weights, is_tied=is_tied and not model.exclude_lm_head)


def save_model(model: Any, original: Any, weights: Any, *arguments: Any) -> None:
    """Replacement for the model builder's method that saves the model: first prints how many matrices of which GGUF
    types were rounded to 8 bits.
    """
    for kind, number in weights.rounded.items():
        print(f"Rounding {number} matrices of the type {kind} to 8 bits", flush=True)
    original(model, *arguments)


def as_quantized(blocks: "gguf_blocks.Blocks") -> SimpleNamespace:
    """Convert blocks of quantized weights to the form in which the model builder expects a quantized matrix: an object
    with the attributes `qweight`, `scales`, `qzeros` and so on. Returns this object.
    """
    num_rows, num_columns = blocks.codes.shape
    quantized = SimpleNamespace(
        bits=blocks.bits,
        group_size=blocks.block,
        in_features=num_columns,
        out_features=num_rows,
        qweight=torch.from_numpy(blocks.packed().reshape(num_rows, num_columns // blocks.block, -1).copy()),
        scales=torch.from_numpy(blocks.scales),
    )
    points = blocks.zero_points()
    if points is not None:
        quantized.qzeros = torch.from_numpy(points)
    return quantized


def make_widened(model: Any, weight: Any, name: str, root_input: str, **kwargs: Any) -> str:
    """Write a matrix product to the graph whose weights are stored in 16 bits, and converted to 32 bits when the graph
    is loaded. Returns the name of the product's node, `name`.

    `model` is the model builder, `weight` the matrix, and `root_input` the name of the value that is multiplied by it.
    """
    stem = name[1:].replace("/", ".") + ".weight"
    model.make_initializer(weight.T, stem)
    cast, output = f"{name}/Cast", "logits" if kwargs.get("logits") else f"{name}/output_0"
    shape = [weight.shape[1], weight.shape[0]]
    model.make_cast(cast, stem, dtype=onnx_ir.DataType.FLOAT, shape=shape)
    model.make_node("MatMul", inputs=[root_input, f"{cast}/output_0"], outputs=[output], name=name)
    sequence = kwargs.get("seq_dim", "sequence_length")
    model.make_value(output, model.io_dtype, shape=model.make_hidden_state_shape(seq_dim=sequence, last_dim=shape[1]))
    return name


def make_widened_lookup(model: Any, embedding: Any, basename: str) -> str:
    """Write an embedding lookup to the graph whose weights are stored in 16 bits. Returns the name of its output, which
    has 32 bits.

    `model` is the model builder, `embedding` the matrix, and `basename` the beginning of the names of the graph's
    nodes.
    """
    gather, cast, shape = f"{basename}/Gather", f"{basename}/Cast", model.make_hidden_state_shape()
    model.make_initializer(embedding, "model.embed_tokens.weight")
    inputs = ["model.embed_tokens.weight", model.input_names["input_ids"]]
    kind = onnx_ir.DataType.FLOAT16 if embedding.dtype == torch.float16 else onnx_ir.DataType.BFLOAT16
    model.make_gather(gather, inputs, dtype=kind, shape=shape, axis=0)
    model.make_cast(cast, f"{gather}/output_0", dtype=onnx_ir.DataType.FLOAT, shape=shape)
    return f"{cast}/output_0"


def look_up(model: Any, embedding: Any, basename: str, weights: EightBitEnds | GgufWeights, *, is_tied: bool) -> str:
    """Write an embedding lookup to the graph whose weights are stored as quantized blocks, as `weights` provides them.
    Returns the name of its output in the graph.

    `model` is the model builder, and `basename` the beginning of the names of the graph's nodes. If `is_tied`, the
    embedding and the output head are one matrix, and the lookup uses the head's blocks, which the graph has already.
    """
    blocks = weights.blocks(embedding)
    stem = "lm_head.MatMulNBits" if is_tied else "model.embed_tokens"
    num_rows, num_columns = blocks.codes.shape
    ids, width = model.input_names["input_ids"], num_columns * blocks.bits // 8
    packed = f"{stem}.qweight"
    if is_tied:
        packed = f"{basename}/Reshape/output_0"
        inputs = [f"{stem}.qweight", f"/model/constants/INT64/[{num_rows}, {width}]"]
        model.make_reshape(f"{basename}/Reshape", inputs, dtype=onnx_ir.DataType.UINT8, shape=[num_rows, width])
    else:
        model.make_initializer(torch.from_numpy(np.ascontiguousarray(blocks.packed())), packed)
        model.make_initializer(torch.from_numpy(blocks.scales), f"{stem}.scales")
    name = f"{basename}/GatherBlockQuantized"
    model.make_node(
        "GatherBlockQuantized",
        inputs=[packed, ids, f"{stem}.scales"],
        outputs=[f"{name}/output_0"],
        name=name,
        domain="com.microsoft",
        bits=blocks.bits,
        block_size=blocks.block,
        gather_axis=0,
        quantize_axis=1,
    )
    shape = model.make_hidden_state_shape()
    if blocks.offsets is None:
        return f"{name}/output_0"
    # GatherBlockQuantized has no fractions of zero points: the offset of each block is added.
    model.make_value(f"{name}/output_0", model.io_dtype, shape=shape)
    number, by_block = blocks.scales.shape[1], [*shape[:-1], blocks.scales.shape[1], blocks.block]
    model.make_initializer(torch.from_numpy(blocks.offsets), f"{stem}.offsets")
    gathered, column = f"{basename}/offsets/Gather", f"{basename}/offsets/Unsqueeze"
    model.make_gather(gathered, [f"{stem}.offsets", ids], dtype=model.io_dtype, shape=[*shape[:-1], number], axis=0)
    minus_one = "/model/constants/INT64/[-1]"
    column_shape = [*shape[:-1], number, 1]
    model.make_unsqueeze(column, [f"{gathered}/output_0", minus_one], dtype=model.io_dtype, shape=column_shape)
    split, total, joined = (f"{basename}/offsets/{part}" for part in ("Split", "Add", "Join"))
    sizes = f"/model/constants/INT64/[0, 0, {number}, {blocks.block}]"
    model.make_reshape(split, [f"{name}/output_0", sizes], dtype=model.io_dtype, shape=by_block)
    model.make_add(total, [f"{split}/output_0", f"{column}/output_0"], dtype=model.io_dtype, shape=by_block)
    sizes = f"/model/constants/INT64/[0, 0, {num_columns}]"
    model.make_reshape(joined, [f"{total}/output_0", sizes], dtype=model.io_dtype, shape=shape)
    return f"{joined}/output_0"


if __name__ == "__main__":
    main()
