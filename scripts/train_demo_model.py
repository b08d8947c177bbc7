"""Train the demo model of genai-server from scratch and write it as a model directory.

A toy to try the server with: 4 million parameters, trained on text that this script makes from
small tables and templates. See models/README.md.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from _models.environment import REPOSITORY, ensure_environment

SEED = 20_26


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=REPOSITORY / "models" / "demo", help="the model directory to write")
    parser.add_argument(
        "--quick", action="store_true", help="train for a minute only: the whole path, but little ability"
    )
    parser.add_argument("--minutes", type=float, help="maximum minutes of training (default 55, with --quick 1)")
    parser.add_argument("--steps", type=int, default=8000, help="maximum steps of training (default 8000)")
    parser.add_argument("--precision", default="int8", choices=("int4", "int8"), help="of the weights (default int8)")
    parser.add_argument("--threads", type=int, default=2, help="threads to train with (default 2)")
    parser.add_argument("--work", type=Path, help="keep the PyTorch model and its checkpoints here")
    parser.add_argument(
        "--resume", type=Path, metavar="DIR", help="continue with a model directory's weights, on other conversations"
    )
    parser.add_argument("--seed", type=int, default=SEED, help="of the weights and the conversations (default 2026)")
    arguments = parser.parse_args()
    ensure_environment()
    if arguments.work:
        arguments.work.mkdir(parents=True, exist_ok=True)
        make(arguments, arguments.work)
    else:
        with tempfile.TemporaryDirectory() as work:
            make(arguments, Path(work))


def make(arguments: argparse.Namespace, work: Path) -> None:
    """Tokenizer, model, training, export."""
    import torch
    from _models.restore import restore
    from _models.template import SOURCE
    from _models.tokenizer import save_tokenizer
    from _models.training import CONTEXT, PEAK_RATE, RESUMED_RATE, Budget, make_model, make_tokenizer, train
    from tokenizers import Tokenizer

    torch.manual_seed(arguments.seed)
    if arguments.resume:
        tokenizer = Tokenizer.from_file(str(arguments.resume / "tokenizer.json"))
    else:
        tokenizer = make_tokenizer(arguments.seed)
    model = make_model(tokenizer.get_vocab_size())
    if arguments.resume:
        restore(arguments.resume, model)
    save_tokenizer(tokenizer, work, SOURCE.read_text(encoding="utf-8"), CONTEXT)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {tokenizer.get_vocab_size()} tokens", flush=True)

    def checkpoint() -> None:
        model.save_pretrained(work)

    train(
        model,
        tokenizer,
        seed=arguments.seed,
        budget=Budget(arguments.steps, arguments.minutes or (1 if arguments.quick else 55), arguments.threads),
        rate=RESUMED_RATE if arguments.resume else PEAK_RATE,
        checkpoint=checkpoint,
    )
    checkpoint()
    write_directory(work, arguments.out, arguments.precision)


def write_directory(work: Path, out: Path, precision: str) -> None:
    """Export next to the target, and move it there when it is complete."""
    from _models.card import TEMPLATE
    from _models.export import export, set_greedy

    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".making-") as making:
        fresh = Path(making) / "model"
        export(work, fresh, precision=precision, block_size=32)
        set_greedy(fresh)
        shutil.copy(TEMPLATE, fresh / "README.md")
        if out.exists():
            out.rename(Path(making) / "old")
        fresh.rename(out)
    size = sum(file.stat().st_size for file in out.iterdir())
    print(f"wrote {out}: {size:,} bytes")


if __name__ == "__main__":
    main()
