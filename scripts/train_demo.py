"""Train a demo model of genai-server from scratch, and write it as a model directory.

Toys to try the server with, on text, drawings and speech that this script makes from small tables and templates. See
models/README.md. PyTorch is installed into `.venv-models`.
"""

from __future__ import annotations

import argparse
import importlib
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from _models.environment import REPOSITORY, ensure_environment

MODELS = REPOSITORY / "models"
SEED = 20_26
# What is made, by what, where, in how many minutes and steps of training at most.
DEMOS = {
    "text": ("the demo model", MODELS / "demo", 55.0, 8000),
    "draft": ("the draft model for the demo model", MODELS / "demo-draft", 10.0, 1500),
    "pooled": ("the demo models for embeddings and for reranking, below the folder --out", MODELS, 8.0, 2000),
    "vision": ("the demo model for images", MODELS / "demo-vision", 45.0, 20_000),
    "speech": ("the demo model for speech; needs espeak-ng", MODELS / "demo-speech", 60.0, 50_000),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    demos = parser.add_subparsers(dest="demo", required=True, metavar=" | ".join(DEMOS))
    options = {name: demos.add_parser(name, help=about[0], description=about[0]) for name, about in DEMOS.items()}
    for name, (_, out, minutes, steps) in DEMOS.items():
        add = options[name].add_argument
        add("--out", type=Path, default=out, help="the directory to write (default %(default)s)")
        add("--quick", action="store_true", help="train for a minute only: the whole path, but little ability")
        add("--minutes", type=float, help=f"maximum minutes of training (default {minutes:g}, with --quick 1)")
        add("--steps", type=int, default=steps, help="maximum steps of training (default %(default)s)")
        add("--threads", type=int, default=2, help="threads to train with (default 2)")
        add("--work", type=Path, help="keep the PyTorch model, its checkpoints and its data here")
        add("--seed", type=int, default=SEED, help="of the weights and the data (default %(default)s)")
        if name != "pooled":
            add("--precision", default="int8", choices=("int4", "int8"), help="of the decoder's weights (default int8)")
    for name in ("text", "vision", "speech"):
        options[name].add_argument(
            "--resume", type=Path, metavar="DIR", help="continue with what is in a --work folder"
        )
    about = "to be spoken before (default 30000, with --quick 500)"
    options["speech"].add_argument("--sentences", type=int, metavar="N", help=about)
    about = "write what sentence-transformers gives, for tests"
    options["pooled"].add_argument("--record", type=Path, metavar="FILE", help=about)
    arguments = parser.parse_args()
    if arguments.minutes is None:
        arguments.minutes = 1.0 if arguments.quick else DEMOS[arguments.demo][2]
    ensure_environment()
    training = importlib.import_module(f"_training.{arguments.demo}")
    with tempfile.TemporaryDirectory() as temporary, fresh_directory(arguments) as fresh:
        work = arguments.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        training.make(arguments, work, fresh)


@contextmanager
def fresh_directory(arguments: argparse.Namespace) -> Iterator[Path]:
    """A path next to the target for what is exported, which takes the target's place at the end, but for its card.

    An error leaves the target as it is.
    """
    out: Path = arguments.out
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".making-") as making:
        fresh = Path(making) / "model"
        yield fresh
        made = [(fresh / f"demo-{name}", out / f"demo-{name}") for name in ("embeddings", "reranker")]
        for source, target in made if arguments.demo == "pooled" else [(fresh, out)]:
            if (card := target / "README.md").exists():
                shutil.copy(card, source)
            if target.exists():
                target.rename(Path(making) / f"old-{target.name}")
            target.parent.mkdir(parents=True, exist_ok=True)
            source.rename(target)
            size = sum(file.stat().st_size for file in target.rglob("*") if file.is_file())
            print(f"wrote {target}: {size:,} bytes")


if __name__ == "__main__":
    main()
