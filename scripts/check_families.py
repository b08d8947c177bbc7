"""Build small random-weight models of the architectures that users name, and check which of them run batched.

On the batched runner, each must give the answers of a new `og.Generator` that reads the prompt at once. Tokens must be
equal in fp32, and in int4 with activations of 32 bits. Activations of 8 bits are how int4 models are served; with them,
logits may differ on average by a tenth of their standard deviation: the library's own differ by up to half as much when
it reads token by token. A model that does not fit must be refused with a reason.
Run it with the interpreter of `.venv`; it takes some minutes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import onnx
from _models.activations import with_float_activations
from _models.driven import Driven, engine_spec, random_prompt
from _models.environment import REPOSITORY, prepare, python
from _models.equality import SITUATIONS, STEPS, Batch, Reference, Tally, long_rows
from _models.export import BUILDER, PATCHED_BUILDER, builder_arguments, offline_environment
from _models.family import FAMILIES, Family
from _models.table import write_between

from genai_server.engine.graph_description import DoesNotFit
from genai_server.engine.graph_rewriting.ragged import find_head
from genai_server.engine.model.files import read_config
from genai_server.engine.model.graph_reader import read_decoder_graph
from genai_server.engine.model.weights import prepacked_model
from genai_server.engine.runners.load_model import load_batched
from genai_server.hub.architectures import read_source_config, why_not_mobius

DOCUMENT = REPOSITORY / "docs" / "evidence" / "models.md"
PRECISIONS = ("fp32", "int4")
MOBIUS = str(REPOSITORY / "src" / "genai_server" / "hub" / "build_mobius.py")
# What reads the last layer's output, as onnxruntime-genai's builder and mobius name it.
LAST_NORMS = ("final_norm", "model.norm")
# In the order in which they are tried; and how a directory of theirs is marked.
BUILDERS = {BUILDER: "", PATCHED_BUILDER: "-patched", MOBIUS: "-mobius"}
# The checks: columns of the table.
FP32, FLOAT_ACTIVATIONS, INT8_ACTIVATIONS = CHECKS = ("fp32", "int4, activations of 32 bits", "int4")
HEAD = f"| family | checked with | runner | {' | '.join(CHECKS)} |\n|---|---|---|---|---|---|\n"
SLOTS, MAX_LENGTH, LONGEST = 10, 256, 150
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
    parser.add_argument("--work", type=Path, help="keep what is built here, and take what is there already")
    parser.add_argument("--write", action="store_true", help=f"write the table into evidence/{DOCUMENT.name}")
    arguments = parser.parse_args()
    prepare()
    with tempfile.TemporaryDirectory() as temporary:
        work = arguments.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        rows, ok = check_all(arguments.only or list(FAMILIES), work.resolve())
    if arguments.write and not arguments.only:
        write_between(DOCUMENT, "families", HEAD + "".join(f"{row}\n" for row in rows))
    sys.exit(not ok)


def check_all(names: list[str], work: Path) -> tuple[list[str], bool]:
    """Check one family after the other, and print the table while it grows."""
    rows, ok = [], True
    print(HEAD, end="", flush=True)
    for name in names:
        cells: dict[str, dict[str, str]] = {}
        for precision in PRECISIONS:
            for result in check(name, precision, work):
                ok = ok and result.ok
                cells.setdefault(result.runner, {})[result.check] = result.cell
        for runner, found in cells.items():
            row = (FAMILIES[name].title, FAMILIES[name].structure, runner, *(found.get(c, "–") for c in CHECKS))
            rows.append(f"| {' | '.join(row)} |")
            print(rows[-1], flush=True)
    return rows, ok


def check(name: str, precision: str, work: Path) -> list[Result]:
    """Build one model and check it in a separate process, whose crash is also a result."""
    directory, complaint = build(name, precision, work)
    results = []
    if complaint:
        results.append(Result(True, f"not built: the builder of onnxruntime-genai ends with `{complaint}`"))
    if directory is not None:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            try:
                results += pool.submit(look, directory, precision, patched=bool(complaint)).result()
            except Exception as error:  # the other families must still be checked
                results.append(Result(False, f"fails: {type(error).__name__}: {str(error)[:300]}"))
    return results


def build(name: str, precision: str, work: Path) -> tuple[Path | None, str]:
    """The model directory, if it can be built, and the builder's complaint, if it had to be patched for that."""
    source, complaint = work / f"{name}-source", ""
    if not source.exists():
        subprocess.run([python(), "-m", "_models.family", name, source], check=True, env=offline_environment())
    for builder, mark in BUILDERS.items():
        target = work / f"{name}-{precision}{mark}"
        failed = run_builder(builder, FAMILIES[name], (source, target), precision)
        if not failed:
            check_head(target)
            return target, complaint
        complaint = complaint or failed
    return None, complaint


def run_builder(builder: str, family: Family, way: tuple[Path, Path], precision: str) -> str:
    """Run a command unless its output already exists; returns the last line of its log if it fails."""
    source, target = way
    if (target / "genai_config.json").exists():
        return ""
    log = target.with_name(f"{target.name}.log")
    command = [str(python()), *builder_arguments(builder, source, target, precision, block_size=32), *family.options]
    command += ["-c", str(source.parent / "cache")]
    if builder == MOBIUS:
        if (reason := why_not_mobius(read_source_config(source))) is not None:
            return reason
        command = [str(python()), builder, str(source), str(target), precision]
    with log.open("w") as output:
        done = subprocess.run(command, stdout=output, stderr=output, env=offline_environment())
    last = log.read_text().strip().splitlines()[-1].replace(str(source), source.name)
    return last if done.returncode else ""


def check_head(directory: Path) -> None:
    """The logits must come from the last layer: the builder takes a layer as wide as the vocabulary for the head."""
    decoder = read_config(directory)["model"]["decoder"]
    graph = onnx.load(str(directory / decoder["filename"]), load_external_data=False).graph
    head = find_head(graph, decoder["outputs"]["logits"])
    assert head is None or any(name in head.states for name in LAST_NORMS), f"{directory}: the head reads {head.states}"


def look(directory: Path, precision: str, *, patched: bool) -> list[Result]:
    """Check a model directory as an engine would load it."""
    note = ", built with mobius" if directory.name.endswith(BUILDERS[MOBIUS]) else ""
    if patched and not note:
        note = ", built with the patched builder"
    try:
        if precision == "fp32":
            return [compare(directory, FP32, note)]
        exact = with_float_activations(directory)
        served = prepacked_model(
            directory, directory.with_name(f"{directory.name}-served")
        )  # experts, too, have 8 bits
        return [compare(exact, FLOAT_ACTIVATIONS, note), compare(served, INT8_ACTIVATIONS, note)]
    except DoesNotFit as reason:
        Reference(directory, MAX_LENGTH).answer(random_prompt(LONGEST))  # it must at least run there
        return [Result(True, f"generator: {reason}{note}")]


def compare(directory: Path, check: str, note: str) -> Result:
    """All situations on the batched runner. Raises DoesNotFit."""
    reference, tally = Reference(directory, MAX_LENGTH), Tally()
    switches_at = read_decoder_graph(directory).switches_at
    longest = LONGEST if switches_at is None else switches_at - STEPS
    situations = [partial(situation, longest=longest) for situation in SITUATIONS]
    if switches_at is not None:
        situations.append(partial(long_rows, switches_at=switches_at))
    for situation in situations:
        runner = load_batched(engine_spec(directory, SLOTS, MAX_LENGTH), directory, reference.runner.model)
        situation(Batch(Driven(runner), reference, tally))
    if check == INT8_ACTIVATIONS:
        ok, difference = tally.mean <= ROUNDING, tally.mean
    else:
        ok, difference = tally.equal == tally.compared, tally.largest
    ok = ok and reference.variety > 2 * STEPS
    cell = f"{tally.equal} of {tally.compared}, {difference:.1e}"
    return Result(ok, f"batched{note}", check, cell if ok else f"**{cell}**")


if __name__ == "__main__":
    main()
