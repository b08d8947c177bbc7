"""What the scripts that train demo models share: options, the folder to work in, and the directory that they write."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SEED = 20_26


def training_options(description: str | None, out: Path, *, minutes: int, steps: int) -> argparse.ArgumentParser:
    """A parser with the options that all of them have. `minutes` and `steps` are the defaults."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=out, help="the model directory to write")
    parser.add_argument(
        "--quick", action="store_true", help="train for a minute only: the whole path, but little ability"
    )
    parser.add_argument(
        "--minutes", type=float, help=f"maximum minutes of training (default {minutes}, with --quick 1)"
    )
    parser.add_argument("--steps", type=int, default=steps, help="maximum steps of training (default %(default)s)")
    parser.add_argument(
        "--precision", default="int8", choices=("int4", "int8"), help="of the decoder's weights (default int8)"
    )
    parser.add_argument("--threads", type=int, default=2, help="threads to train with (default 2)")
    parser.add_argument("--work", type=Path, help="keep the PyTorch model, its checkpoints and its data here")
    parser.add_argument("--seed", type=int, default=SEED, help="of the weights and the data (default %(default)s)")
    return parser


@contextmanager
def work_folder(given: Path | None) -> Iterator[Path]:
    """The given folder, which is created if it is missing, or a temporary one."""
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given
        return
    with tempfile.TemporaryDirectory() as work:
        yield Path(work)


@contextmanager
def fresh_directory(out: Path, card: Path) -> Iterator[Path]:
    """A path next to the target for the exported model, which gets the card and takes the target's place at the end.

    An error leaves the target as it is.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".making-") as making:
        fresh = Path(making) / "model"
        yield fresh
        shutil.copy(card, fresh / "README.md")
        if out.exists():
            out.rename(Path(making) / "old")
        fresh.rename(out)
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    print(f"wrote {out}: {size:,} bytes")
