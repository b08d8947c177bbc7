"""Train the demo model for pictures from scratch and write it as a model directory.

A toy to try images with: it answers questions about simple drawings, which this script makes. See models/README.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from _models.demo_training import fresh_directory, training_options, work_folder
from _models.environment import REPOSITORY, ensure_environment

# Of training, at most.
MINUTES = 45
CARD = Path(__file__).with_name("_models") / "vision_card.md"
OUT = REPOSITORY / "models" / "demo-vision"


def main() -> None:
    parser = training_options(__doc__, OUT, minutes=MINUTES, steps=20_000)
    parser.add_argument(
        "--resume", type=Path, metavar="CHECKPOINT", help="continue with checkpoint.pt of a --work folder"
    )
    parser.add_argument("--rate", type=float, default=1e-3, help="of learning, at its peak (default 0.001)")
    parser.add_argument(
        "--tower-alone",
        type=float,
        default=0.3,
        metavar="SHARE",
        help="of the time, in which only the vision part learns, from labels of what is where (default 0.3)",
    )
    arguments = parser.parse_args()
    ensure_environment()
    with work_folder(arguments.work) as work:
        make(arguments, work)


def make(arguments: argparse.Namespace, work: Path) -> None:
    """Tokenizer, model, training, export."""
    import torch
    from _models.tokenizer import save_tokenizer
    from _models.training import Budget
    from _models.vision_families import QWEN_TEMPLATE
    from _models.vision_training import CONTEXT, Seer, make_tokenizer, save, train
    from tokenizers import Tokenizer

    torch.manual_seed(arguments.seed)
    if arguments.resume:
        tokenizer = Tokenizer.from_file(str(arguments.resume.parent / "source" / "tokenizer.json"))
    else:
        tokenizer = make_tokenizer(arguments.seed)
    (work / "source").mkdir(exist_ok=True)
    save_tokenizer(tokenizer, work / "source", QWEN_TEMPLATE, CONTEXT)
    model = Seer(tokenizer.get_vocab_size())
    if arguments.resume:
        model.load_state_dict(torch.load(arguments.resume))
    parts = [p for name, p in model.named_parameters() if "visual" not in name]
    print(f"{sum(p.numel() for p in parts):,} parameters, {tokenizer.get_vocab_size()} tokens", flush=True)

    minutes = arguments.minutes if arguments.minutes is not None else (1 if arguments.quick else MINUTES)
    if minutes > 0:
        train(
            model,
            tokenizer,
            seed=arguments.seed,
            budget=Budget(arguments.steps, minutes, arguments.threads),
            checkpoint=lambda: save(model, work / "checkpoint.pt"),
            rate=arguments.rate,
            tower_alone=arguments.tower_alone,
        )
    save(model, work / "checkpoint.pt")
    model.train(False)
    model.whole.save_pretrained(work / "source")
    write_directory(model, work / "source", arguments.out, arguments.precision)


def write_directory(model: Any, source: Path, out: Path, precision: str) -> None:
    """Export next to the target, and move it there when it is complete."""
    from _models.export import export, set_greedy
    from _models.picture_batches import MAX_PIXELS, MIN_PIXELS
    from _models.tower_graph import write_tower
    from _models.vision_files import complete, qwen_layout
    from _models.vision_training import IMAGE_TOKENS

    with fresh_directory(out, CARD) as fresh:
        export(source, fresh, precision=precision, block_size=32, options=["exclude_embeds=true"])
        layout = qwen_layout("qwen3_vl", IMAGE_TOKENS, MIN_PIXELS, MAX_PIXELS)
        complete(layout, source, fresh, lambda path, _: write_tower(path, model.tower), half=True)
        set_greedy(fresh)


if __name__ == "__main__":
    main()
