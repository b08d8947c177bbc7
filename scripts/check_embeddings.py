"""Check the families of models for embeddings and reranking: build a small random one of each, export it, serve it, and
compare what comes over HTTP with sentence-transformers on the same weights. In int8 the numbers are only alike: there
the cosine similarity of each vector is compared, and the scores.

Needs the environment of scripts/train_demo_embeddings.py, which it makes.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx
from _load.server import HOST, Server, run_server
from _models.environment import prepare, python
from _models.table import table

PROGRAM = Path(__file__).parent / "_models" / "pooled_families.py"
# The largest difference of a number in fp32. In int8: of a score, and of a vector's cosine similarity from 1.
MOST = {"fp32": 1e-3, "int8": 0.05}
DOCUMENT = Path(__file__).parents[1] / "docs" / "evidence" / "models.md"
BEGIN, END = "<!-- pooled families -->\n", "<!-- end of pooled families -->"
# What a family stands for, and what of it is checked.
KNOWN = {
    "bert-cls": ("bge, snowflake-arctic-embed", "BERT, first token"),
    "bert-mean-prompts": ("MiniLM, e5, gte", "BERT, mean, prompts left out of it"),
    "bert-dense": ("models with a dense layer", "BERT, mean, dense layer in the graph"),
    "mpnet-mean": ("all-mpnet", "MPNet, mean"),
    "xlmr-mean": ("multilingual-e5, bge-m3", "XLM-R, mean"),
    "modernbert-cls": ("gte-modernbert, nomic modernbert-embed", "ModernBERT with local attention, first token"),
    "nomic-mean": ("nomic-embed", "NomicBERT, mean"),
    "qwen3-last": ("Qwen3-Embedding", "decoder of onnxruntime-genai, last token"),
    "qwen3-mean": ("decoders with a mean", "decoder of onnxruntime-genai, mean"),
    "bert-reranker": ("ms-marco-MiniLM", "BERT with one label"),
    "xlmr-reranker": ("bge-reranker", "XLM-R with one label"),
    "modernbert-reranker": ("gte-reranker-modernbert", "ModernBERT with one label"),
    "qwen3-reranker": ("Qwen3-Reranker", 'decoder of onnxruntime-genai, logits of "yes" and "no"'),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(KNOWN), choices=list(KNOWN), metavar="FAMILY")
    parser.add_argument("--precisions", nargs="+", default=list(MOST), choices=list(MOST), metavar="PRECISION")
    parser.add_argument("--python", type=Path, help="Python with PyTorch and sentence-transformers")
    parser.add_argument(
        "--sources", type=Path, metavar="DIR", help="keep the models before their export here, or take them"
    )
    parser.add_argument("--write", action="store_true", help=f"write the table into evidence/{DOCUMENT.name}")
    arguments = parser.parse_args()
    if arguments.python is None:
        prepare()
    environment = arguments.python or python()
    with tempfile.TemporaryDirectory() as folder:
        sources = arguments.sources or Path(folder) / "sources"
        if not sources.exists():
            subprocess.run([environment, PROGRAM, sources], check=True)
        rows, failed = check(sources, Path(folder), environment, arguments.only, arguments.precisions)
    head = ["stands for", "checked with", "precision", "largest difference", "least cosine similarity"]
    print(table([head, *rows], markdown=True))
    if arguments.write:
        text = DOCUMENT.read_text(encoding="utf-8")
        before, _, rest = text.partition(BEGIN)
        shown = table([head, *rows], markdown=True)
        DOCUMENT.write_text(f"{before}{BEGIN}{shown}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    sys.exit(failed)


def check(
    sources: Path, folder: Path, environment: Path, names: list[str], precisions: list[str]
) -> tuple[list[list[str]], int]:
    """A row for each family and precision, and how many of them differ."""
    rows, failed = [], 0
    for name in names:
        for precision in precisions:
            try:
                target = export(sources / name, folder / f"{name}-{precision}", precision, environment)
                largest, cosine = difference(sources / name, target, folder)
                found = [f"{largest:.1e}", "–" if cosine is None else f"{cosine:.4f}"]
                # Vectors of int8 differ in many numbers a little, which their direction shows better.
                failed += (largest if precision == "fp32" or cosine is None else 1 - cosine) > MOST[precision]
            except (RuntimeError, OSError) as error:
                found, failed = [f"not checked: {error}", "–"], failed + 1
            rows.append([*KNOWN[name], precision, *found])
            print(name, precision, *found, flush=True)
    return rows, failed


def export(source: Path, target: Path, precision: str, environment: Path) -> Path:
    """Build the model directory of a family. Raises RuntimeError."""
    command = [sys.executable, "-m", "genai_server", "export", str(source), "--to", str(target)]
    command += ["--python", str(environment), "--precision", precision]
    if source.name == "qwen3-reranker":
        command += ["--task", "rerank"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"export: {(done.stderr or done.stdout).strip()[-300:]}")
    return target


def difference(source: Path, target: Path, folder: Path) -> tuple[float, float | None]:
    """The largest difference of a number that the server gives for an exported model, and of vectors the least cosine
    similarity."""
    expected: dict[str, Any] = json.loads((source / "expected.json").read_text())
    with run_server(folder, {"GENAI_MODEL_DIR": str(target)}) as server:
        if "pairs" in expected:
            first, second = zip(*expected["pairs"], strict=True)
            answer = _ask(server, "score", {"text_1": first, "text_2": second, "truncate_prompt_tokens": -1})
            return _largest([[entry["score"] for entry in answer["data"]]], [expected["scores"]]), None
        found = []
        for prompt in expected["prompts"]:
            named = {} if prompt is None else {"prompt_name": prompt}
            asked = {"input": expected["texts"], "truncate_prompt_tokens": -1, **named}
            found += [entry["embedding"] for entry in _ask(server, "embeddings", asked)["data"]]
        wanted = [vector for vectors in expected["vectors"] for vector in vectors]
        return _largest(found, wanted), min(map(_cosine, found, wanted))


def _ask(server: Server, endpoint: str, body: dict[str, Any]) -> dict[str, Any]:
    response = httpx.post(f"http://{HOST}:{server.port}/v1/{endpoint}", json=body, timeout=60)
    if response.status_code != 200:
        raise RuntimeError(response.text)
    answer: dict[str, Any] = response.json()
    return answer


def _largest(found: list[list[float]], expected: list[list[float]]) -> float:
    return max(abs(a - b) for one, other in zip(found, expected, strict=True) for a, b in zip(one, other, strict=True))


def _cosine(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True)) / (math.hypot(*one) * math.hypot(*other))


if __name__ == "__main__":
    main()
