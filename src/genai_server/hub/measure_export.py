"""Compares a built decoder with its source on a text. This is a program for the Python interpreter that `export` uses.

    python measure_export.py BUILT SOURCE DEADLINE

DEADLINE is in seconds since 1970; at least one window of the text is compared even if it has passed. After each window,
the program prints the result so far as a line of JSON. It ends with an error message if the comparison would be
misleading, or time or memory do not suffice. It imports no module of this package, because the package may be missing
in the interpreter's environment.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

_TEXT = Path(__file__).with_name("measured_text.txt")
# Tokens of a window, the first of which have little to go by, and the most windows.
_WINDOW, _MAX_WINDOWS = 128, 8
_MODELS: Any = AutoModelForCausalLM
_TOKENIZERS: Any = AutoTokenizer
_FULL = ".measured.onnx"
_WINDOW_SIZE = "local_window_size"
# Of free memory that both models may take together.
_SHARE = 0.8
# Bytes of a source's weights, from which it is computed in 16 bits.
_LARGE = 8 * 1024**3


def main() -> None:
    """Compare the built model with its source on windows of a text, until the deadline. After each window, prints a
    line of JSON with the perplexity of each model, and the share of tokens after which both prefer the same token.
    """
    built, source, deadline = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
    size = sum(path.stat().st_size for path in source.iterdir() if path.is_file())
    dtype = torch.float32 if size < _LARGE else torch.bfloat16
    check_memory(built, 2 * size if dtype == torch.float32 else size)
    windows = windows_of(built)
    run_built = load_built(built)
    model = _MODELS.from_pretrained(source, dtype=dtype).eval()
    losses, source_losses, agreements = [], [], []
    for window in windows:
        started = time.time()
        logits = run_built(window)
        with torch.no_grad():
            expected = model(torch.tensor([window])).logits[0].float().numpy()
        losses.append(loss(logits, window))
        source_losses.append(loss(expected, window))
        agreements.append(logits[:-1].argmax(-1) == expected[:-1].argmax(-1))
        result = {
            "tokens": int(sum(map(len, losses))),
            "perplexity": round(float(np.exp(np.concatenate(losses).mean())), 4),
            "perplexity_of_source": round(float(np.exp(np.concatenate(source_losses).mean())), 4),
            "same_top_token": round(float(np.concatenate(agreements).mean()), 4),
        }
        print(json.dumps(result), flush=True)
        if time.time() + (time.time() - started) > deadline:
            break


def check_memory(built: Path, needed: int) -> None:
    """Raise SystemExit if two models do not fit into free memory together: the built model in the directory `built`,
    and its source, which needs `needed` bytes.

    Nothing is checked if the operating system does not report free memory.
    """
    needed += sum(path.stat().st_size for path in built.iterdir() if path.is_file())
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        return
    if needed > _SHARE * free:
        raise SystemExit(f"both models need {needed >> 20} MiB, and {free >> 20} MiB are free")


def windows_of(built: Path) -> list[list[int]]:
    """Return the text on which the models are compared, as windows of equally many token ids. It is encoded by the
    tokenizer of the built model in the directory `built`. Each window begins with the token for the beginning of a text
    if the tokenizer adds one.

    Raises SystemExit if the text has too few tokens for a window.
    """
    tokenizer = _TOKENIZERS.from_pretrained(built)
    ids = list(tokenizer(_TEXT.read_text(encoding="utf-8")).input_ids)
    first = [ids.pop(0)] if ids and ids[0] == tokenizer.bos_token_id else []
    size = _WINDOW - len(first)
    windows = [first + ids[start : start + size] for start in range(0, len(ids) - size + 1, size)]
    if not windows:
        raise SystemExit("the text has too few tokens")
    return windows[:_MAX_WINDOWS]


def load_built(built: Path) -> Any:
    """Load the built decoder in the directory `built` into ONNX Runtime.

    Returns a function that takes a window, a list of token ids, and returns the logits of all its tokens, [tokens,
    vocabulary]. Raises SystemExit if the graph does not read tokens.
    """
    decoder = json.loads((built / "genai_config.json").read_text(encoding="utf-8"))["model"]["decoder"]
    graph = onnx.load(str(built / decoder["filename"]), load_external_data=False)
    with_all_logits(graph.graph)
    # Short caches of layers with a window need their full size.
    capacity = max((a.i for node in graph.graph.node for a in node.attribute if a.name == _WINDOW_SIZE), default=0)
    path = built / _FULL
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        onnx.save(graph, str(path))
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    finally:
        path.unlink(missing_ok=True)
    names = {entry.name for entry in session.get_inputs()}
    if "input_ids" not in names:
        raise SystemExit("its graph does not read tokens")

    def run(window: list[int]) -> Any:
        sizes = int(decoder["head_size"]), max(capacity, 0)
        inputs = {entry.name: initial(entry, window, *sizes) for entry in session.get_inputs()}
        return session.run(["logits"], inputs)[0][0].astype(np.float32)

    return run


def with_all_logits(graph: Any) -> None:
    """Change an ONNX graph so that it returns the logits of all tokens, by removing the nodes that select the logits of
    the last token. onnxruntime-genai's builder adds these nodes with its option prune_lm_head; a graph without them
    stays unchanged.
    """
    nodes = {node.name: node for node in graph.node}
    gather, unsqueeze = nodes.get("/lm_head/prune/Gather"), nodes.get("/lm_head/prune/Unsqueeze")
    if gather is None or unsqueeze is None:
        return
    for node in graph.node:
        for index, name in enumerate(node.input):
            if name == unsqueeze.output[0]:
                node.input[index] = gather.input[0]
    for node in (gather, unsqueeze):
        graph.node.remove(node)
    for output in graph.output:
        if output.name == "logits":
            output.type.tensor_type.shape.dim[1].dim_param = "all_tokens"


def initial(entry: Any, window: list[int], head_size: int, capacity: int) -> Any:
    """Return the value of one input of a graph for the first pass over a window: the token ids, the attention mask, the
    positions, or an empty KV cache.

    `entry` is the description of the input by ONNX Runtime; `head_size` and `capacity`, in tokens, give the KV cache
    its shape. Raises SystemExit for an unknown input.
    """
    if entry.name == "input_ids":
        return np.array([window], np.int64)
    if entry.name == "attention_mask":
        return np.ones((1, len(window)), np.int64)
    if entry.name == "position_ids" and len(entry.shape) == 2:
        return np.arange(len(window), dtype=np.int64)[None]
    if not entry.name.startswith("past"):
        raise SystemExit(f"its graph has the input {entry.name}")
    kinds = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
    if entry.type not in kinds:
        raise SystemExit(f"its graph has the type {entry.type}")
    sizes = [size if isinstance(size, int) else symbolic(size, head_size, capacity) for size in entry.shape]
    return np.zeros(sizes, kinds[entry.type])


def symbolic(name: str, head_size: int, capacity: int) -> int:
    """Return the size that a dimension of the KV cache with the symbolic name `name` gets for a run: 1 for the batch,
    `capacity` for the number of tokens, otherwise `head_size`.
    """
    if "batch" in name:
        return 1
    return capacity if "sequence" in name or "length" in name else head_size


def loss(logits: Any, window: list[int]) -> Any:
    """Return the negative log probability of each token of a window except the first, [tokens - 1]. `window` has the
    token ids, and `logits` [tokens, vocabulary] what a model has computed for them.
    """
    predicting = logits[:-1]
    largest = predicting.max(-1, keepdims=True)
    totals = largest[:, 0] + np.log(np.exp(predicting - largest).sum(-1))
    return totals - predicting[np.arange(len(predicting)), window[1:]]


if __name__ == "__main__":
    main()
