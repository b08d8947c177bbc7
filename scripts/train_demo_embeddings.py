"""Train the demo models for embeddings and for reranking from scratch, and write them as model directories.

Toys to try the server with, of less than a million parameters, on sentences that this script makes from small tables.
See models/README.md. Each run gives other weights: the trainer of the tokenizer breaks ties at random. If the models of
a run are kept, --record must write tests/apis/embeddings/demo_vectors.json again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from _models.demo_training import SEED, fresh_directory, work_folder
from _models.environment import REPOSITORY, ensure_environment

PROGRAM = REPOSITORY / "src" / "genai_server" / "hub" / "export_encoder.py"
CARDS = Path(__file__).parent / "_models"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=REPOSITORY / "models", help="folder of the two model directories")
    parser.add_argument("--quick", action="store_true", help="20 steps only: the whole path, but no ability")
    parser.add_argument("--minutes", type=float, default=8.0, help="of training for each of the two (default 8)")
    parser.add_argument("--steps", type=int, default=2000, help="of training for each of the two (default 2000)")
    parser.add_argument("--work", type=Path, help="keep the PyTorch models here")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--only-record", action="store_true", help="train nothing; record what --work has")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write what sentence-transformers gives, for tests")
    arguments = parser.parse_args()
    ensure_environment()
    with work_folder(arguments.work) as work:
        if not arguments.only_record:
            make(arguments, work)
        if arguments.record:
            record(work, arguments.record)


def make(arguments: argparse.Namespace, work: Path) -> None:
    """Tokenizer, both models, export."""
    import torch
    from _models import pooled_training as training
    from _models.topics import topics

    torch.manual_seed(arguments.seed)
    torch.set_num_threads(2)
    known = topics()
    tokenizer = training.make_tokenizer(known)
    budget = training.Budget(20 if arguments.quick else arguments.steps, arguments.minutes)
    embeddings = training.train_embeddings(tokenizer, known, budget, arguments.seed)
    share = training.share_of_nearest(embeddings, tokenizer, known)
    print(f"{share:.0%} of the held-out queries have a text of their topic as the nearest")
    training.save(embeddings, tokenizer, work / "embeddings", reranks=False)
    reranker = training.train_reranker(tokenizer, known, budget, arguments.seed, embeddings)
    training.save(reranker, tokenizer, work / "reranker", reranks=True)
    for name in ("embeddings", "reranker"):
        write_directory(work / name, arguments.out / f"demo-{name}", CARDS / f"{name}_card.md")


def record(work: Path, file: Path) -> None:
    """Write some vectors and scores of sentence-transformers for the trained weights."""
    from sentence_transformers import CrossEncoder, SentenceTransformer

    texts = ["rain", "Which of these is about France?", "Paris is the capital of France.", "Kraków 🙂 " * 20]
    pairs = [[texts[1], text] for text in texts] + [["rain", "It will rain all afternoon."]]
    vectors = SentenceTransformer(str(work / "embeddings"), device="cpu").encode(texts)
    scores = CrossEncoder(str(work / "reranker"), device="cpu").predict(pairs)
    found = {"texts": texts, "vectors": _short(vectors.tolist()), "pairs": pairs, "scores": _short(scores.tolist())}
    file.write_text(json.dumps(found) + "\n", encoding="utf-8")


def _short(value: Any) -> Any:
    return [_short(inner) for inner in value] if isinstance(value, list) else round(value, 6)


def write_directory(source: Path, out: Path, card: Path) -> None:
    """Export next to the target, and move it there when it is complete."""
    with fresh_directory(out, card) as fresh:
        subprocess.run([sys.executable, str(PROGRAM), str(source), str(fresh), "fp32"], check=True)


if __name__ == "__main__":
    main()
