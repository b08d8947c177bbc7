"""Build small random-weight models of the architectures that users name, and check which of them run batched.

On the batched runner, each must give the answers of a new `og.Generator` that reads the prompt at once. Tokens must be
equal in fp32, and in int4 with activations of 32 bits. Activations of 8 bits are how int4 models are served; with them,
logits may differ on average by a tenth of their standard deviation: the library's own differ by up to half as much when
it reads token by token. A model that does not fit must be refused with a reason.
Run it with the interpreter of `.venv`; it takes some minutes.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from _models.activations import with_float_activations
from _models.driven import Driven, engine_spec, random_prompt
from _models.environment import REPOSITORY, prepare, python
from _models.equality import LONGEST, STEPS, Reference, compare
from _models.export import BUILDER, PATCHED_BUILDER, builder_arguments, offline_environment
from _models.family import FAMILIES
from _models.table import write_between

from genai_server.engine.graph_description import DoesNotFit
from genai_server.engine.model.graph_reader import read_decoder_graph
from genai_server.engine.model.weights import prepacked_model
from genai_server.engine.runners.load_model import load_batched
from genai_server.hub.architectures import read_source_config, why_not_mobius

DOCUMENT = REPOSITORY / "docs" / "evidence" / "models.md"
PRECISIONS = ("fp32", "int4")
MOBIUS = str(REPOSITORY / "src" / "genai_server" / "hub" / "build_mobius.py")
# In the order in which they are tried; and what the table says of those that were needed.
BUILDERS = {BUILDER: "", PATCHED_BUILDER: ", built with the patched builder", MOBIUS: ", built with mobius"}
# The checks: columns of the table.
FP32, FLOAT_ACTIVATIONS, INT8_ACTIVATIONS = CHECKS = ("fp32", "int4, activations of 32 bits", "int4")
HEAD = f"| family | checked with | runner | {' | '.join(CHECKS)} |\n|---|---|---|---|---|---|\n"
SLOTS, MAX_LENGTH = 10, 256
# Of the logits' standard deviation: the mean difference that activations of 8 bits may make. Mistakes make about 1.
ROUNDING = 0.1


@dataclass(frozen=True)
class Result:
    """What was found of a family: a cell in the table, or a reason without one; `ok` if the promise holds."""

    ok: bool
    runner: str
    check: str = ""
    cell: str = ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=FAMILIES, help="this family (may be given again)")
    parser.add_argument("--write", action="store_true", help=f"write the table into evidence/{DOCUMENT.name}")
    arguments = parser.parse_args()
    prepare()
    rows, ok = check_all(arguments.only or list(FAMILIES))
    if arguments.write and not arguments.only:
        write_between(DOCUMENT, "families", HEAD + "".join(f"{row}\n" for row in rows))
    sys.exit(not ok)


def check_all(names: list[str]) -> tuple[list[str], bool]:
    """Check one family after the other, and print the table while it grows."""
    rows, ok = [], True
    print(HEAD, end="", flush=True)
    for name in names:
        cells: dict[str, dict[str, str]] = {}
        with tempfile.TemporaryDirectory() as work:
            for result in check(name, Path(work).resolve()):
                ok = ok and result.ok
                cells.setdefault(result.runner, {})[result.check] = result.cell
        for runner, found in cells.items():
            row = (FAMILIES[name].title, FAMILIES[name].structure, runner, *(found.get(c, "–") for c in CHECKS))
            rows.append(f"| {' | '.join(row)} |")
            print(rows[-1], flush=True)
    return rows, ok


def check(name: str, work: Path) -> Iterator[Result]:
    """Build a model in each precision, and check it in a separate process, whose crash is also a result."""
    source = work / "source"
    subprocess.run([python(), "-m", "_models.family", name, source], check=True, env=offline_environment())
    for precision in PRECISIONS:
        for builder, note in BUILDERS.items():
            target = work / precision
            complaint = build(builder, FAMILIES[name].options, source, target, precision)
            if builder == BUILDER and complaint:
                yield Result(True, f"not built: the builder of onnxruntime-genai ends with `{complaint}`")
            if not complaint:
                with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                    try:
                        yield from pool.submit(check_directory, target, precision, note).result()
                    except Exception as error:  # the other families must still be checked
                        yield Result(False, f"fails: {type(error).__name__}: {str(error)[:300]}")
                break


def build(builder: str, options: Sequence[str], source: Path, target: Path, precision: str) -> str:
    """Build a model directory; returns the last line of the builder's log if it fails."""
    shutil.rmtree(target, ignore_errors=True)
    command = [*builder_arguments(builder, source, target, precision, block_size=32), *options]
    command += ["-c", str(source.parent / "cache")]
    if builder == MOBIUS:
        if (reason := why_not_mobius(read_source_config(source))) is not None:
            return reason
        command = [builder, str(source), str(target), precision]
    environment = offline_environment()
    done = subprocess.run(
        [python(), *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )
    return done.stdout.strip().splitlines()[-1].replace(str(source), source.name) if done.returncode else ""


def check_directory(directory: Path, precision: str, note: str) -> list[Result]:
    """Check a model directory as an engine would load it."""
    try:
        if precision == "fp32":
            return [check_batched(directory, FP32, note)]
        exact = with_float_activations(directory)
        # Experts, too, have 8 bits.
        served = prepacked_model(directory, directory.with_name(f"{directory.name}-served"))
        return [check_batched(exact, FLOAT_ACTIVATIONS, note), check_batched(served, INT8_ACTIVATIONS, note)]
    except DoesNotFit as reason:
        Reference(directory, MAX_LENGTH).answer(random_prompt(LONGEST))  # it must at least run there
        return [Result(True, f"generator: {reason}{note}")]


def check_batched(directory: Path, check: str, note: str) -> Result:
    """Compare the batched runner with the library. Raises DoesNotFit."""
    reference = Reference(directory, MAX_LENGTH)
    runner = load_batched(engine_spec(directory, SLOTS, MAX_LENGTH), directory, reference.runner.model)
    tally = compare(Driven(runner), reference, read_decoder_graph(directory).switches_at)
    if check == INT8_ACTIVATIONS:
        ok, difference = tally.mean <= ROUNDING, tally.mean
    else:
        ok, difference = tally.equal == tally.compared, tally.largest
    ok = ok and tally.cached > 0 and reference.variety > 2 * STEPS
    cell = f"{tally.equal} of {tally.compared}, {difference:.1e}"
    return Result(ok, f"batched{note}", check, cell if ok else f"**{cell}**")


if __name__ == "__main__":
    main()
