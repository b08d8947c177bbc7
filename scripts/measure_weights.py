"""Measure what weights of 8 bits, made from a model's 4-bit ones, do to its answers: perplexity, and how often the best
token is the reference's.

A text is read in chunks of 16 tokens, whose last logits are compared: with the model's own weights, with 8 bits, and
with 8 bits in steps that decode another sequence besides. The reference is a directory of the same model in more bits;
with --four-bits, MODEL_DIR itself is it, and a copy of it in 4 bits is measured. Run it with `.venv`'s interpreter.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from _models.conversations import conversation
from _models.driven import Driven
from _models.engine_spec import engine_spec
from _models.requantized import write_requantized
from _models.table import table
from _models.template import load_template, render
from msgspec import structs
from numpy.typing import NDArray
from tokenizers import Tokenizer

from genai_server.engine.runners.batched import BatchedRunner
from genai_server.engine.runners.choose import load_model

CHUNK, WINDOW = 16, 512
HEAD = ["weights", "perplexity", "best token is the reference's", "best token is the text's"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model_dir", type=Path, nargs="?", default=Path("models/demo"), metavar="MODEL_DIR")
    parser.add_argument("--reference", type=Path, help="a directory of the same model in more bits")
    parser.add_argument("--four-bits", action="store_true", help="measure MODEL_DIR, of 8 bits, in 4")
    parser.add_argument("--text", type=Path, help="what to read (conversations like those of the demo model)")
    parser.add_argument("--tokens", type=int, default=16_384, help="of the text (16384)")
    parser.add_argument("--markdown", action="store_true", help="print the table as a document has it")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model, reference = arguments.model_dir, arguments.reference
        if arguments.four_bits:
            model, reference = write_requantized(arguments.model_dir, Path(folder) / "four-bits"), arguments.model_dir
        text = arguments.text.read_text(encoding="utf-8") if arguments.text else conversations(arguments.tokens)
        tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        ids = tokenizer.encode(text, add_special_tokens=False).ids[: arguments.tokens]
        cache = Path(folder) / "cache"
        found: dict[str, NDArray[np.float32]] = (
            {} if reference is None else {"reference": read(runner_of(reference, cache, "int4"), ids)}
        )
        runner = runner_of(model, cache, "int8")
        if runner.sessions.int8 is None:
            parser.exit(1, f"{model} has no matrices of 4 bits, or they cannot be stored in 8\n")
        for name, int8_from in (("own", None), ("8 bits", 1)):
            runner.runner.abilities = replace(runner.abilities, int8_from=int8_from)
            found[name] = read(runner, ids)
    print(table([HEAD, *rows(found, following(ids))], markdown=arguments.markdown))


def conversations(num_tokens: int) -> str:
    """Text of about this number of tokens."""
    chance, template, found = random.Random(8), load_template(), ""
    while len(found) < 6 * num_tokens:
        chat = conversation(chance)
        found += render(template, chat.messages, chat.tools, answer_next=False)
    return found


def runner_of(model: Path, cache: Path, weights: str) -> Driven:
    spec = engine_spec(model, 2, WINDOW, cache)
    spec = structs.replace(spec, settings=structs.replace(spec.settings, prefill_weights=weights))
    batched = load_model(spec).main
    if not isinstance(batched, BatchedRunner):
        raise SystemExit(f"{model} does not run in a batch")
    return Driven(batched)


def windows(ids: list[int]) -> Iterator[list[int]]:
    """Pieces of the text, each of which is read from an empty cache; one further token remains to be predicted."""
    for start in range(0, len(ids) - CHUNK, WINDOW - CHUNK):
        piece = ids[start : start + WINDOW - CHUNK]
        yield piece[: (len(piece) - 1) // CHUNK * CHUNK]


def following(ids: list[int]) -> NDArray[np.int64]:
    """The tokens that the logits of `read` predict."""
    starts = range(0, len(ids) - CHUNK, WINDOW - CHUNK)
    found = [
        ids[start + end]
        for start, piece in zip(starts, windows(ids), strict=True)
        for end in range(CHUNK, len(piece) + 1, CHUNK)
    ]
    return np.array(found)


def read(runner: Driven, ids: list[int]) -> NDArray[np.float32]:
    """The logits [chunks, vocab_size] after each chunk of the text."""
    found = []
    for piece in windows(ids):
        runner.open(1, piece, WINDOW, reuse=False)
        for start in range(0, len(piece), CHUNK):
            found.append(runner.prefill(1, piece[start : start + CHUNK]).copy())
        runner.close(1)
        runner.forget()
    return np.array(found)


def rows(found: dict[str, NDArray[np.float32]], wanted: NDArray[np.int64]) -> Iterator[list[str]]:
    """A row of the table for each kind of weights."""
    for name, logits in found.items():
        best = logits.max(1, keepdims=True)
        log_sums = np.log(np.exp(logits - best).sum(1)) + best[:, 0]
        perplexity = np.exp(np.mean(log_sums - logits[np.arange(len(wanted)), wanted]))
        choices, against = logits.argmax(1), found.get("reference")
        agreement = "–" if against is None else f"{100 * np.mean(choices == against.argmax(1)):.1f} %"
        yield [name, f"{perplexity:.3f}", agreement, f"{100 * np.mean(choices == wanted):.1f} %"]


if __name__ == "__main__":
    main()
