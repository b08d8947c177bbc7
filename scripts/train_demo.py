"""Train a demo model of genai-server from scratch, and write it as a model directory.

Toys to try the server with, on text, drawings and speech that this script makes from small tables and templates. See
models/README.md. PyTorch is installed into `.venv-models`.
"""

from __future__ import annotations

import argparse
import importlib
import shutil
import tempfile
from pathlib import Path

from _models.environment import REPOSITORY, ensure_environment

MODELS = REPOSITORY / "models"
# What is made, where, and in how many minutes and steps of training at most.
DEMOS = {
    "text": ("the demo model", MODELS / "demo", 55.0, 8000),
    "draft": ("the draft model for the demo model", MODELS / "demo-draft", 10.0, 1500),
    "pooled": ("the demo models for embeddings and for reranking, below the folder --out", MODELS, 8.0, 2000),
    "vision": ("the demo model for images", MODELS / "demo-vision", 45.0, 20_000),
    "speech": ("the demo model for speech; needs espeak-ng", MODELS / "demo-speech", 60.0, 50_000),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("demo", choices=DEMOS, help="; ".join(f"{name}: {about[0]}" for name, about in DEMOS.items()))
    parser.add_argument("--out", type=Path, help="the directory to write (default: that of the demo model)")
    parser.add_argument("--quick", action="store_true", help="train for a minute only: the whole path, little ability")
    parser.add_argument("--minutes", type=float, help="maximum minutes of training (default: models/README.md)")
    about = "pooled: also write what sentence-transformers gives, for tests"
    parser.add_argument("--record", type=Path, metavar="FILE", help=about)
    arguments = parser.parse_args()
    if arguments.record and arguments.demo != "pooled":
        parser.error("--record is for pooled")
    _, default_out, minutes, steps = DEMOS[arguments.demo]
    ensure_environment()
    training = importlib.import_module(f"_training.{arguments.demo}")
    out: Path = arguments.out or default_out
    with tempfile.TemporaryDirectory() as temporary:
        work, fresh = Path(temporary) / "work", Path(temporary) / "fresh"
        work.mkdir()
        minutes = arguments.minutes or (1.0 if arguments.quick else minutes)
        training.make(training.Budget(steps, minutes), work, fresh)
        if arguments.record:
            training.record(work, arguments.record)
        # Only now, so that an error leaves the target as it is; its card stays.
        shutil.copytree(fresh, out, dirs_exist_ok=True)
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
