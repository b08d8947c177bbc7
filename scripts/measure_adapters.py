"""Measure how fast requests with LoRA adapters are answered: with one adapter or several at once, in passes that these
share, in a pass for each, and one by one on Generators.

A copy of the model gets inputs for adapters at all matrices of its layers; the adapters have random weights. In each
round, all cases follow one another, each with all clients at once. A case's figure is the median of its ratios to the
same clients without an adapter in the same round, of tokens per second and of tokens per second of processor time; the
latter is what counts if the machine is busy. Run it with the interpreter of `.venv`.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median

from _models.adapter_graph import random_weights, save_adapter, write_adapted
from _models.arguments import numbers
from _models.engine_loop import Answered, Engine
from _models.engine_spec import engine_spec
from _models.table import table

from genai_server.engine.runners.choose import load_model
from genai_server.engine.runners.loaded_model import LoadedModel
from genai_server.engine.runners.og_generator import OgGeneratorRunner
from genai_server.engine.sampling.grammar import model_guidance
from genai_server.messages.generation_request import Adapter, GenerationRequest

PROMPT, STRENGTH = 64, 0.1
WITHOUT, SHARED, GENERATOR = "without", "shared passes", "one by one"
HEAD = ["adapters", "how", "tokens/s", "of without", "of without, processor time"]
Case = tuple[int, str]


class Measured:
    """A model with adapters, whose requests are answered in one of several ways."""

    def __init__(self, model: Path, files: list[Path], folder: Path, arguments: argparse.Namespace) -> None:
        spec = engine_spec(model, arguments.clients, PROMPT + arguments.tokens, folder / "cache")
        loaded = load_model(spec)
        self._batch = loaded.main
        if not self._batch.abilities.adapters:
            raise SystemExit(f"adapters of {model} do not run in its batch")
        guidance = model_guidance(model, loaded.main.model)
        self._in_batch = Engine(loaded, guidance, folder)
        with self._without_adapters():
            generator = OgGeneratorRunner(model, "cpu", threads=0)
            self._one_by_one = Engine(LoadedModel(generator, loaded.main), guidance, folder)
        chance = random.Random(5)
        vocabulary = range(min(100, loaded.main.model.vocab_size // 2), loaded.main.model.vocab_size)
        self._prompts = [chance.choices(vocabulary, k=PROMPT) for _ in range(arguments.clients)]
        self._adapters = [Adapter(file.stem, str(file), file.stem) for file in files]
        self._num_tokens = arguments.tokens

    def answer(self, case: Case) -> Answered:
        """Answer all clients in the way of a case."""
        num_adapters, how = case
        requests = [
            GenerationRequest(
                "measured",
                prompt,
                self._num_tokens,
                PROMPT + self._num_tokens,
                ignore_eos=True,
                cache_prompt=False,
                adapter=self._adapters[number % num_adapters] if num_adapters else None,
            )
            for number, prompt in enumerate(self._prompts)
        ]
        if how == GENERATOR:
            with self._without_adapters():
                return self._one_by_one.answer(requests)
        return self._in_batch.answer(requests)

    @contextmanager
    def _without_adapters(self) -> Iterator[None]:
        """As if the batch took no adapters."""
        before = self._batch.abilities
        self._batch.abilities = replace(before, adapters=False)
        try:
            yield
        finally:
            self._batch.abilities = before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model_dir", type=Path, nargs="?", default=Path("models/demo"), metavar="MODEL_DIR")
    parser.add_argument("--adapters", type=numbers, default=(1, 2, 4, 8), help="numbers of adapters at once (1,2,4,8)")
    parser.add_argument("--rank", type=int, default=16, help="of the adapters (16)")
    parser.add_argument("--clients", type=int, default=8, help="answers at once (8)")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer (64)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each median (5)")
    parser.add_argument("--markdown", action="store_true", help="print the table as a document has it")
    arguments = parser.parse_args()
    cases: list[Case] = [(0, WITHOUT)]
    for number in arguments.adapters:
        cases += [(number, SHARED), (number, GENERATOR)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = write_model(arguments.model_dir, folder / "model", max(arguments.adapters), arguments.rank)
        measured = Measured(folder / "model", files, folder, arguments)
        found: dict[Case, list[Answered]] = {case: [] for case in cases}
        for number in range(arguments.rounds + 1):
            for case in cases:
                answered = measured.answer(case)
                if number:  # the first round measures what passes cost, and loads adapters
                    found[case].append(answered)
    print(table([HEAD, *rows(found)], markdown=arguments.markdown))


def rows(found: dict[Case, list[Answered]]) -> Iterator[list[str]]:
    """A row of the table for each case."""
    without = found[0, WITHOUT]
    for (number, how), answered in found.items():
        pairs = list(zip(answered, without, strict=True))
        yield [
            str(number),
            how,
            f"{median(one.per_second for one in answered):.1f}",
            f"{median(one.per_second / other.per_second for one, other in pairs):.2f}",
            f"{median(one.per_cpu_second / other.per_cpu_second for one, other in pairs):.2f}",
        ]


def write_model(source: Path, target: Path, num_adapters: int, rank: int) -> list[Path]:
    """Write a copy of a model with inputs for adapters, and adapters for it; returns their files."""
    shapes = write_adapted(source, target)
    files = [target / f"random{number}.onnx_adapter" for number in range(num_adapters)]
    for number, adapter in enumerate(files):
        save_adapter(adapter, random_weights(shapes, rank, STRENGTH, number))
    return files


if __name__ == "__main__":
    main()
