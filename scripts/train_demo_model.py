"""Train the demo model of genai-server from scratch and write it as a model directory.

A toy to try the server with: 4 million parameters, trained on text that this script makes from
small tables and templates. See models/README.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from _models.demo_training import fresh_directory, training_options, work_folder
from _models.environment import REPOSITORY, ensure_environment

CARD = Path(__file__).with_name("_models") / "card.md"
# Of training, at most.
MINUTES = 55


def main() -> None:
    parser = training_options(__doc__, REPOSITORY / "models" / "demo", minutes=MINUTES, steps=8000)
    parser.add_argument(
        "--resume", type=Path, metavar="DIR", help="continue with a model directory's weights, on other conversations"
    )
    arguments = parser.parse_args()
    ensure_environment()
    with work_folder(arguments.work) as work:
        make(arguments, work)


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
        budget=Budget(arguments.steps, arguments.minutes or (1 if arguments.quick else MINUTES), arguments.threads),
        rate=RESUMED_RATE if arguments.resume else PEAK_RATE,
        checkpoint=checkpoint,
    )
    checkpoint()
    write_directory(work, arguments.out, arguments.precision)


def write_directory(work: Path, out: Path, precision: str) -> None:
    """Export next to the target, and move it there when it is complete."""
    from _models.export import export, set_greedy

    with fresh_directory(out, CARD) as fresh:
        export(work, fresh, precision=precision, block_size=32)
        set_greedy(fresh)


if __name__ == "__main__":
    main()
