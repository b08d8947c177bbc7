"""Changes of a model directory as another builder or a person would make them."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

from tests.running_server import DEMO, ROOT


def base_model(directory: Path) -> Path:
    """A copy of the demo model without a chat template, like base models."""
    shutil.copytree(DEMO, directory, ignore=shutil.ignore_patterns("chat_template.jinja"))
    return directory


def code_model(directory: Path) -> list[int]:
    """A copy of the demo model whose last tokens are StarCoder's infill tokens; returns their ids."""
    shutil.copytree(DEMO, directory)
    path = directory / "tokenizer.json"
    tokenizer: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    replaced = sorted(vocabulary, key=vocabulary.get)[-3:]
    ids = [vocabulary.pop(text) for text in replaced]
    for id, text in zip(ids, ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"), strict=True):
        vocabulary[text] = id
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        tokenizer["added_tokens"].append({"id": id, "content": text, "special": True, **flags})
    merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in tokenizer["model"]["merges"]]
    tokenizer["model"]["merges"] = [pair for pair in merges if not {*pair, "".join(pair)} & {*replaced}]
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    return ids


@contextmanager
def edited_config(directory: Path) -> Iterator[dict[str, Any]]:
    """The model's genai_config.json, written when the block ends."""
    path = directory / "genai_config.json"
    config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    yield config
    path.write_text(json.dumps(config), encoding="utf-8")


def model_in_folders(target: Path) -> Path:
    """A copy of the model for images, with each of its graphs in a folder of its own."""
    model_dir = Path(shutil.copytree(ROOT / "models" / "demo-vision", target))
    with edited_config(model_dir) as config:
        for part in ("decoder", "vision", "embedding"):
            name = config["model"][part]["filename"]
            (model_dir / part).mkdir()
            for file in model_dir.glob(f"{name}*"):
                file.rename(model_dir / part / file.name)
            config["model"][part]["filename"] = f"{part}/{name}"
    return model_dir


@contextmanager
def edited_graph(directory: Path) -> Iterator[onnx.GraphProto]:
    """The model's graph, written when the block ends; weights in separate files stay there."""
    path = str(directory / "model.onnx")
    model = onnx.load(path, load_external_data=False)
    yield model.graph
    onnx.save(model, path)


def make_pruned_model(directory: Path) -> None:
    """Copy the demo model as built with prune_lm_head: its graph returns the logits of the last token only."""
    shutil.copytree(DEMO, directory)
    last, axis = helper.make_tensor("last", TensorProto.INT64, [], [-1]), helper.make_tensor("axis", 7, [1], [1])
    with edited_graph(directory) as graph:
        place, head = next((place, node) for place, node in enumerate(graph.node) if node.name == "/lm_head/MatMul_Q8")
        graph.initializer.extend([last, axis])
        graph.node.insert(place, helper.make_node("Gather", [head.input[0], "last"], ["last_state"], axis=1))
        graph.node.insert(place + 1, helper.make_node("Unsqueeze", ["last_state", "axis"], ["last_states"]))
        head.input[0] = "last_states"
        logits = next(output for output in graph.output if output.name == "logits")
        logits.type.tensor_type.shape.dim[1].dim_value = 1
