"""Train the demo model for pictures from scratch and write it as a model directory.

A toy to try images with: it answers questions about simple drawings, which this script makes. See models/README.md.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from _models.environment import REPOSITORY, ensure_environment

SEED = 20_26
OUT = REPOSITORY / "models" / "demo-vision"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT, help="the model directory to write")
    parser.add_argument(
        "--quick", action="store_true", help="train for a minute only: the whole path, but little ability"
    )
    parser.add_argument("--minutes", type=float, help="maximum minutes of training (default 45, with --quick 1)")
    parser.add_argument("--steps", type=int, default=20_000, help="maximum steps of training (default 20000)")
    parser.add_argument("--precision", default="int8", choices=("int4", "int8"), help="of the decoder (default int8)")
    parser.add_argument("--threads", type=int, default=2, help="threads to train with (default 2)")
    parser.add_argument("--work", type=Path, help="keep the PyTorch model and its checkpoints here")
    parser.add_argument("--resume", type=Path, metavar="CHECKPOINT", help="continue with the weights of checkpoint.pt")
    parser.add_argument("--seed", type=int, default=SEED, help="of the weights and the pictures (default 2026)")
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
    from _models.training import Budget
    from _models.vision_training import TOWER_ALONE, Seer, make_tokenizer, save, train

    torch.manual_seed(arguments.seed)
    tokenizer = make_tokenizer(SEED)
    model = Seer(tokenizer.get_vocab_size())
    if arguments.resume:
        model.load_state_dict(torch.load(arguments.resume))
    parts = [p for name, p in model.named_parameters() if "visual" not in name]
    print(f"{sum(p.numel() for p in parts):,} parameters, {tokenizer.get_vocab_size()} tokens", flush=True)

    minutes = arguments.minutes if arguments.minutes is not None else (1 if arguments.quick else 45)
    if minutes > 0:
        train(
            model,
            tokenizer,
            seed=arguments.seed,
            budget=Budget(arguments.steps, minutes, arguments.threads),
            checkpoint=lambda: save(model, work / "checkpoint.pt"),
            alone=0.0 if arguments.resume else TOWER_ALONE,
        )
    save(model, work / "checkpoint.pt")


if __name__ == "__main__":
    main()
