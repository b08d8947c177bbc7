"""Train the demo model for speech from scratch and write it as a model directory.

A toy to try transcriptions with: it knows some 280 English words, which espeak-ng speaks. See models/README.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from random import Random
from typing import Any

from _models.demo_training import fresh_directory, training_options, work_folder
from _models.environment import REPOSITORY, ensure_environment

# Of training, at most.
MINUTES = 60
CARD = Path(__file__).with_name("_models") / "speech_card.md"
OUT = REPOSITORY / "models" / "demo-speech"


def main() -> None:
    parser = training_options(__doc__, OUT, minutes=MINUTES, steps=50_000)
    parser.add_argument("--sentences", type=int, help="to be spoken before (default 30000, with --quick 500)")
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="PATH",
        help="continue with checkpoint.pt of a --work folder, or with a model directory that this script has written",
    )
    parser.add_argument("--rate", type=float, default=2e-3, help="of learning, at its peak (default 0.002)")
    parser.add_argument(
        "--begin",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="begin with the lessons that belong to this share of the time (default 0)",
    )
    parser.add_argument("--decoder-only", action="store_true", help="leave the encoder as it is; each step is faster")
    arguments = parser.parse_args()
    ensure_environment()
    with work_folder(arguments.work) as work:
        make(arguments, work)


def make(arguments: argparse.Namespace, work: Path) -> None:
    """Recordings, tokenizer, model, training, export."""
    import torch
    from _models.restore import restore_speech
    from _models.speech_corpus import load_corpus, make_corpus
    from _models.speech_files import save_speech_tokenizer
    from _models.speech_sounds import check_espeak
    from _models.speech_training import LAYOUT, Listener, Plan, make_tokenizer, save, train
    from _models.training import Budget
    from tokenizers import Tokenizer

    check_espeak()
    torch.manual_seed(arguments.seed)
    if arguments.resume:
        folder = arguments.resume if arguments.resume.is_dir() else arguments.resume.parent / "source"
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    else:
        tokenizer = make_tokenizer(arguments.seed)
    (work / "source").mkdir(exist_ok=True)
    save_speech_tokenizer(tokenizer, work / "source", LAYOUT)
    model = Listener(tokenizer)
    if arguments.resume and arguments.resume.is_dir():
        restore_speech(arguments.resume, model.whole)
    elif arguments.resume:
        model.load_state_dict(torch.load(arguments.resume))
    if arguments.decoder_only:
        model.freeze_encoder()
    size = sum(p.numel() for p in model.whole.parameters())
    print(f"{size:,} parameters, {tokenizer.get_vocab_size()} tokens", flush=True)

    minutes = arguments.minutes if arguments.minutes is not None else (1 if arguments.quick else MINUTES)
    if minutes > 0:
        if not (work / "texts.json").exists():
            sentences = arguments.sentences or (500 if arguments.quick else 30_000)
            make_corpus(work, sentences, Random(arguments.seed), arguments.threads)
        train(
            model,
            tokenizer,
            load_corpus(work),
            seed=arguments.seed,
            plan=Plan(Budget(arguments.steps, minutes, arguments.threads), arguments.rate, arguments.begin),
            checkpoint=lambda: save(model, work / "checkpoint.pt"),
        )
    save(model, work / "checkpoint.pt")
    model.train(False)
    model.whole.save_pretrained(work / "source")
    write_directory(tokenizer, work / "source", arguments.out, arguments.precision)


def write_directory(tokenizer: Any, source: Path, out: Path, precision: str) -> None:
    """Export next to the target, and move it there when it is complete."""
    from _models.speech_files import export_speech
    from _models.speech_recordings import example
    from _models.speech_training import LAYOUT

    with fresh_directory(out, CARD) as fresh:
        export_speech(source, fresh, LAYOUT, precision=precision, block_size=32, tokenizer=tokenizer)
        (fresh / "example.wav").write_bytes(example())


if __name__ == "__main__":
    main()
