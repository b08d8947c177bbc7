"""Compare what `genai-server export` makes of quantized checkpoints and GGUF files with the weights they stand for.

Small models with random weights are written as the tools write them (GPTQ, AWQ, Quark, Olive, llama.cpp), and as plain
models of Transformers with the very same values. The graph that onnxruntime-genai's builder makes of the former must
give the logits that PyTorch computes of the latter. Formats that the server refuses must still differ, or they are
refused for nothing. It runs in `.venv-models`, and takes some minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import math
import runpy
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from _models.environment import REPOSITORY, ensure_environment
from _models.families import FAMILIES
from _models.family import make

DOCUMENT = REPOSITORY / "docs" / "evidence" / "models.md"
UNPACK = REPOSITORY / "src" / "genai_server" / "hub" / "unpack_gguf.py"
# Programs of the package, which import each other by their names.
sys.path.append(str(UNPACK.parent))
START, END = "<!-- checkpoints -->\n", "<!-- end of checkpoints -->\n"
HEAD = "| checkpoint | model | largest difference of logits | export |\n|---|---|---:|---|\n"
# Of the logits' standard deviation: ONNX Runtime sums in another order than PyTorch.
EQUAL = 1e-4
# Activations are not rounded, so that graphs of GGUF files can equal PyTorch.
EXACT = "accuracy_level=0"
TEXT = "A window of 24 tokens isn't long.\n\nIt has digits (1 2 3), signs and <|im_end|> in it: naïve."
TOKENS = [5, 77, 300, 4, 222, 9, 410, 33, 18, 250, 7, 91, 12, 160, 44, 6, 351, 80, 29, 140, 66, 3, 205, 58]
# No layer may be as wide as the vocabulary, or the builder takes it for the head.
SIZES: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 384, "vocab_size": 504}
# GGUF files have no numbers for Llama 3's rope and Gemma 2's queries but those of published models.
SETTINGS: dict[str, dict[str, Any]] = {
    "llama-3": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500_000.0,
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
    },
    "gemma-2-mask": {"head_dim": 256, "query_pre_attn_scalar": 256},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="NAME", help="checkpoints with this in their name")
    parser.add_argument("--write", action="store_true", help=f"write the table into evidence/{DOCUMENT.name}")
    arguments = parser.parse_args()
    ensure_environment()
    rows, ok = [], True
    print(HEAD, end="", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for title, family, check in [*quantized_checks(), *gguf_checks()]:
            if arguments.only and not any(part in title for part in arguments.only):
                continue
            difference, verdict, is_right = check(Path(folder))
            ok = ok and is_right
            figure = "–" if math.isnan(difference) else f"{difference:.1e}"
            rows.append(f"| {title} | {FAMILIES[family].title} | {figure} | {verdict} |")
            print(rows[-1], flush=True)
    if arguments.write and not arguments.only:
        head, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(START)
        table = HEAD + "".join(f"{row}\n" for row in rows)
        DOCUMENT.write_text(head + START + table + END + rest.partition(END)[2], encoding="utf-8")
    sys.exit(not ok)


def quantized_checks() -> list[tuple[str, str, Any]]:
    """The checks of quantized checkpoints: title, family and function."""
    from _models.quantized_checkpoints import FORMATS, FUSED_FORMATS

    checks = [(form, "mistral") for form in FORMATS] + [(form, "phi-3-4k") for form in FUSED_FORMATS]
    return [(form.title, family, partial(check_quantized, form, family)) for form, family in checks]


def gguf_checks() -> list[tuple[str, str, Any]]:
    """The checks of GGUF files: title, family and function."""
    from _models.gguf_files import FILES

    return [(f"GGUF, {form.title}", form.family, partial(check_gguf, form)) for form in FILES]


def check_quantized(form: Any, family: str, work: Path) -> tuple[float, str, bool]:
    """The difference, what the server does, and whether that is right."""
    from _models.quantized_checkpoints import write_checkpoint

    source, reference = source_of(family, work), fresh(work, "reference")
    checkpoint = fresh(work, "checkpoint")
    write_checkpoint(source, form, checkpoint, reference)
    kept = ["/model/embed_tokens/Gather", *([] if form.with_head else ["/lm_head/MatMul"])]
    options = [f"block_size={max(form.group, 32)}", "accuracy_level=0", f"nodes_to_exclude={','.join(kept)}"]
    try:
        built = build(checkpoint, fresh(work, "built"), f"int{form.bits}", options)
        difference = compare(built, reference)
    except Exception as error:  # a builder or a session that fails is a result, too
        print(f"    {form.title}: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
        difference = float("nan")
    is_equal = difference < EQUAL
    if form.refused:
        return difference, f"refused: {form.refused}", not is_equal
    return difference, "equal" if is_equal else "**differs**", is_equal


def check_gguf(form: Any, work: Path) -> tuple[float, str, bool]:
    """The difference of a GGUF file's model, and whether its tokenizer and template are the original's."""
    from _models.gguf_files import write_gguf
    from transformers import AutoTokenizer

    source, reference = source_of(form.family, work), fresh(work, "reference")
    folder = fresh(work, "gguf")
    folder.mkdir()
    write_gguf(source, form, folder / "model.gguf", reference)
    unpacked = fresh(work, "unpacked")
    given, sys.argv = sys.argv, [str(UNPACK), str(folder / "model.gguf"), str(unpacked), "--weights"]
    try:
        runpy.run_path(str(UNPACK), run_name="__main__")
    except SystemExit:
        return float("nan"), "**refused**", False
    finally:
        sys.argv = given
    with keeping_blocks(folder / "model.gguf"):
        built = build(unpacked, fresh(work, "built"), "fp32", [*FAMILIES[form.family].options, EXACT])
    difference = compare(built, reference)
    was, now = (AutoTokenizer.from_pretrained(path) for path in (reference, unpacked))
    is_same = was.encode(TEXT) == now.encode(TEXT) and was.chat_template == now.chat_template
    is_equal = difference < EQUAL
    verdict = "equal" if is_equal and is_same else "**differs**"
    return difference, verdict, is_equal and is_same


@contextlib.contextmanager
def keeping_blocks(path: Path) -> Iterator[None]:
    """Let the builder, in this process, write the blocks of a GGUF file."""
    import build_graph
    from onnxruntime_genai.models import builder  # noqa: F401  it lets its parts be imported without their package

    model = importlib.import_module("builders.base").Model
    originals = dict(vars(model))
    build_graph.write_blocks(build_graph.GgufWeights(path))
    try:
        yield
    finally:
        for name, value in originals.items():
            if vars(model).get(name) is not value:
                setattr(model, name, value)


def source_of(family: str, work: Path) -> Path:
    """The original model of a family."""
    path = work / f"{family}-source"
    if not path.exists():
        chosen = FAMILIES[family]
        make(replace(chosen, settings=SIZES | chosen.settings | SETTINGS.get(family, {})), path)
    return path


def fresh(work: Path, name: str) -> Path:
    """A path in `work` at which nothing is yet."""
    return Path(tempfile.mkdtemp(dir=work)) / name


def build(source: Path, target: Path, precision: str, options: list[str]) -> Path:
    """Run the builder in this process, which has loaded PyTorch already."""
    from onnxruntime_genai.models import builder

    paths = "", str(source), str(target), precision, "cpu", str(source.parent / "cache")
    with contextlib.redirect_stdout(io.StringIO()):
        builder.create_model(*paths, **builder.parse_extra_options(*paths, options))
    return target


def compare(built: Path, reference: Path) -> float:
    """The largest difference of the logits, in their standard deviations."""
    import numpy as np
    import onnxruntime
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(reference, dtype=torch.float32).eval()
    with torch.no_grad():
        expected = model(torch.tensor([TOKENS])).logits[0].numpy()
    decoder = json.loads((built / "genai_config.json").read_text())["model"]["decoder"]
    session = onnxruntime.InferenceSession(str(built / decoder["filename"]))
    fed = {
        "input_ids": np.array([TOKENS]),
        "attention_mask": np.ones((1, len(TOKENS)), np.int64),
        "position_ids": np.arange(len(TOKENS))[None],
    }
    for given in session.get_inputs():
        if given.name not in fed:
            sizes = {"batch_size": 1, "kv_cache_dim": decoder["head_size"]}
            shape = [size if isinstance(size, int) else sizes.get(size, 0) for size in given.shape]
            fed[given.name] = np.zeros(shape, np.float32)
    names = {given.name for given in session.get_inputs()}
    (logits,) = session.run(["logits"], {name: array for name, array in fed.items() if name in names})
    return float(np.abs(logits[0] - expected).max() / expected.std())


if __name__ == "__main__":
    main()
