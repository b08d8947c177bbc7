"""Builds model.onnx of an encoder with PyTorch. This is a program for the Python interpreter that `export` uses.

    python export_encoder.py SOURCE TARGET PRECISION

SOURCE is a directory in Hugging Face's format, PRECISION is fp32 or int8. The program imports no module of this
package, because the package may be missing in the interpreter's environment.
"""

import inspect
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, AutoTokenizer

_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_COPIED_FILES = ("*.json", "*.txt", "*.model", "*/config.json")
_LEFT_OUT = ("model.safetensors.index.json",)
# The first opset with attention as one operator. Gelu is one since 20.
_OPSET = 23


def main() -> None:
    """Build model.onnx of an encoder, and copy its tokenizer, with the source, target and precision that the command
    line names.
    """
    source, target, precision = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    target.mkdir(parents=True, exist_ok=True)
    print("Reading configuration", flush=True)
    model, output = load(source)
    names = [name for name in _INPUTS if name in inspect.signature(model.inner.forward).parameters]
    if getattr(model.inner.config, "type_vocab_size", 0) < 2 and "token_type_ids" in names:
        names.remove("token_type_ids")
    with tempfile.TemporaryDirectory(dir=target) as folder:
        exact = Path(folder) / "model.onnx" if precision == "int8" else target / "model.onnx"
        export(model, exact, names, output)
        print("Saving ONNX model", flush=True)
        if precision == "int8":
            from onnxruntime.quantization import QuantType, quantize_dynamic

            # Without Attention, which would be mistaken for ONNX Runtime's operator of that name.
            quantize_dynamic(
                str(exact),
                str(target / "model.onnx"),
                op_types_to_quantize=["MatMul", "Gather"],
                weight_type=QuantType.QInt8,
                per_channel=True,
            )
    print("Saving processing files", flush=True)
    copy(source, target)


class Wrapper(torch.nn.Module):
    """The PyTorch module that is exported to ONNX: an encoder with a fixed order of inputs and a single output tensor.
    `load` creates it.

    The output is that of the encoder `inner` with the name `output`, or the result of `layers`, which are applied to it
    one after the other.
    """

    def __init__(self, inner: Any, output: str, layers: list[Any]) -> None:
        super().__init__()
        self.inner = inner
        self.output = output
        self.layers = torch.nn.ModuleList(layers)

    def forward(self, input_ids: Any, attention_mask: Any = None, token_type_ids: Any = None) -> Any:
        """Run the encoder on texts given as token ids, [texts, tokens]. Without further layers, returns the encoder's
        logits, or a vector for each token, [texts, tokens, width]; with layers, one vector for each text, [texts,
        width].
        """
        optional = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        if hasattr(self.inner.config, "rope_parameters"):
            # Positions for each text: ONNX Runtime's RotaryEmbedding does not broadcast them.
            optional["position_ids"] = torch.arange(input_ids.shape[1]).expand(*input_ids.shape)
        outputs = self.inner(input_ids=input_ids, attention_mask=attention_mask, return_dict=True, **optional)
        result = outputs.logits if self.output == "logits" else outputs.last_hidden_state
        for layer in self.layers:
            result = layer(result, attention_mask)
        return result


class Mean(torch.nn.Module):
    """Pooling layer that returns the mean of the vectors of a text's tokens."""

    def forward(self, states: Any, mask: Any) -> Any:
        """Return the mean vector of each text, [texts, width]. `states` has the vectors of its tokens, [texts, tokens,
        width], and `mask`, [texts, tokens], is 1 for tokens that count and 0 for padding.
        """
        weights = mask.unsqueeze(-1).to(states.dtype)
        return (states * weights).sum(1) / weights.sum(1).clamp(min=1e-9)


class First(torch.nn.Module):
    """Pooling layer that returns the vector of a text's first token (CLS)."""

    def forward(self, states: Any, mask: Any) -> Any:
        """Return the vector of the first token of each text, [texts, width]. `states` has the vectors of all tokens,
        [texts, tokens, width]; `mask` is not used.
        """
        return states[:, 0]


class Dense(torch.nn.Module):
    """A linear layer with an activation function. Both are read from `folder`, the folder of a module of the
    sentence-transformers format.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        from safetensors.torch import load_file

        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.linear = torch.nn.Linear(config["in_features"], config["out_features"], bias=config.get("bias", True))
        weights = load_file(str(folder / "model.safetensors"))
        self.linear.load_state_dict({name.removeprefix("linear."): value for name, value in weights.items()})
        kind = config.get("activation_function", "torch.nn.modules.activation.Tanh").rpartition(".")[2]
        self.activation = getattr(torch.nn, kind)()

    def forward(self, vectors: Any, mask: Any) -> Any:
        """Return the vectors after the linear layer and its activation function, [texts, out_features]. `mask` is not
        used.
        """
        return self.activation(self.linear(vectors))


def load(source: Path) -> tuple[Any, str]:
    """Load the encoder in the directory `source` with 32-bit weights. Returns the module to export, and the name that
    its output shall have in the graph.
    """
    config = AutoConfig.from_pretrained(source)
    architecture = (config.architectures or [""])[0]
    if architecture.endswith("ForSequenceClassification"):
        inner = AutoModelForSequenceClassification.from_pretrained(source, dtype=torch.float32)
        return Wrapper(inner.eval(), "logits", []).eval(), "logits"
    inner = AutoModel.from_pretrained(source, dtype=torch.float32).eval()
    layers = layers_behind(source)
    return Wrapper(inner, "last_hidden_state", layers).eval(), "sentence_embedding" if layers else "last_hidden_state"


def layers_behind(source: Path) -> list[Any]:
    """Return the layers that the exported graph shall contain after the encoder, for a model in the
    sentence-transformers format in `source`: all of its modules up to the last dense layer. Returns an empty list if
    there is no dense layer, because the server can pool vectors without the graph.

    Raises SystemExit for modules that are not supported.
    """
    path = source / "modules.json"
    modules = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    kinds = [module["type"].rpartition(".")[2] for module in modules]
    if "Dense" not in kinds:
        return []
    layers: list[Any] = []
    for module, kind in zip(modules, kinds, strict=True):
        folder = source / module["path"]
        if kind == "Pooling":
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            mode = config.get("pooling_mode")
            is_first = mode == "cls" or config.get("pooling_mode_cls_token")
            if not is_first and mode != "mean" and not config.get("pooling_mode_mean_tokens"):
                raise SystemExit(f"{folder}: a dense layer after this pooling is not supported")
            layers.append(First() if is_first else Mean())
        elif kind == "Dense":
            layers.append(Dense(folder))
        elif kind not in ("Transformer", "Normalize"):
            raise SystemExit(f"{path}: the module {kind} is not supported")
    return layers


def export(model: Any, path: Path, names: list[str], output: str) -> None:
    """Write a PyTorch model to `path` as an ONNX graph that takes any number of texts of any length.

    `names` are the names of the graph's inputs, `output` is the name of its output.
    """
    shape = (2, 8)
    inputs = {name: torch.ones(shape, dtype=torch.int64) for name in names}
    if "token_type_ids" in inputs:
        inputs["token_type_ids"] = torch.zeros(shape, dtype=torch.int64)
    rows, tokens = torch.export.Dim("rows", min=1, max=4096), torch.export.Dim("tokens", min=2, max=32768)
    torch.onnx.export(
        model,
        (),
        str(path),
        kwargs=inputs,
        input_names=names,
        output_names=[output],
        dynamic_shapes={name: {0: rows, 1: tokens} for name in names},
        opset_version=_OPSET,
        dynamo=True,
        external_data=sum(p.numel() for p in model.parameters()) > 400_000_000,
    )


def copy(source: Path, target: Path) -> None:
    """Copy the tokenizer's files and the files that describe how vectors are pooled from the model's directory `source`
    to `target`. A tokenizer in an older format is converted to tokenizer.json.
    """
    for pattern in _COPIED_FILES:
        for path in source.glob(pattern):
            if path.name not in _LEFT_OUT and path.is_file():
                path_in_target = target / path.relative_to(source)
                path_in_target.parent.mkdir(exist_ok=True)
                shutil.copy(path, path_in_target)
    if not (target / "tokenizer.json").is_file():
        AutoTokenizer.from_pretrained(source).save_pretrained(target)


if __name__ == "__main__":
    main()
