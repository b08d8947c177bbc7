"""`genai-server tune`: measures a model on this machine's CPU and writes the best settings into the configuration file.

It tries numbers of threads first. With the best of them it tries a few entries of ONNX Runtime's sessions, and with the
best of these batch sizes and prefill chunks. With the original weights it also tries the block sizes to quantize them
with. Measure on an idle machine: other load distorts the result.
"""

import argparse
import itertools
import os
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from msgspec import structs

from genai_server.cli.model_argument import find
from genai_server.cli.screen import measuring_bar, screen
from genai_server.cli.serve.loaders import check_library
from genai_server.cli.tables import print_report
from genai_server.config.setting_form import environment_variable
from genai_server.config.settings import Settings
from genai_server.config.sources import device_options, load_settings
from genai_server.engine.host.cores import usable_cores
from genai_server.engine.model.files import check_model_directory
from genai_server.errors import ConfigurationError, ExportFailed
from genai_server.options.config_file import DEFAULT_FILE
from genai_server.options.device import DeviceOptions
from genai_server.options.session import SPINNING, THREADS
from genai_server.options.toml import with_settings
from genai_server.pooling_model import Task, task_of
from genai_server.tools.doctor import machine
from genai_server.tools.doctor.finding import WARN
from genai_server.tools.tune.block_sizes import SIZES, Original, blocks, measure_each, table_of_blocks
from genai_server.tools.tune.measured import Measured, Rates, table

if TYPE_CHECKING:
    from genai_server.engine.measuring.tuning import Tuned

_BATCHES, _CHUNKS = (1, 2, 4, 8, 16, 32), (32, 64, 128, 256, 512)
_THREADS_CHUNK = 128
# Tokens of a measured sequence, unless the settings or the model allow fewer.
_LENGTH = 2048
# Entries of a session whose best value depends on the machine: how long idle threads spin, in microseconds.
_ENTRIES = ((SPINNING, "0"), ("session.intra_op.spin_duration_us", "1000"))
# Maximum share of the cores that other programs may use during the measurement.
_MAX_BUSY = 0.1

Show = Callable[[str], None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("model_dir", metavar="DIR|NAME", help="a model directory, or its name in GENAI_MODELS_DIR")
    parser.add_argument("--config", metavar="FILE", help=f"file to write (default: GENAI_CONFIG or {DEFAULT_FILE})")
    parser.add_argument(
        "--seconds", type=float, default=1.0, metavar="S", help="duration of a measurement (default: 1)"
    )
    parser.add_argument("--cache-dir", metavar="TEXT", help="as for serve")
    parser.add_argument(
        "--original", type=Path, metavar="DIR", help="the original in Hugging Face's format: also try each block size"
    )
    parser.add_argument(
        "--python",
        type=Path,
        default=Path(sys.executable),
        metavar="FILE",
        help="Python of an environment with PyTorch, for --original",
    )
    parser.add_argument("--dry-run", action="store_true", help="show the best settings and write nothing")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure, show the table and write. Raises ConfigurationError."""
    check_library()
    if not arguments.seconds > 0:
        raise ConfigurationError(f"--seconds={arguments.seconds}: it must be more than 0")
    target = Path(arguments.config) if arguments.config else None
    named = {"config": arguments.config} if target is not None and target.exists() else {}
    settings = load_settings(
        {"model_dir": str(find(arguments.model_dir)), "cache_dir": arguments.cache_dir, "device": "cpu"} | named
    )
    target = target or Path(settings.config or DEFAULT_FILE)
    check_model_directory(Path(settings.model_dir))
    if (task := task_of(Path(settings.model_dir))) is not Task.GENERATE:
        raise ConfigurationError(f"{settings.model_dir} is a model for {task}: there is nothing to tune")
    original = Original(arguments.original, arguments.python) if arguments.original else None
    precision = original.check(Path(settings.model_dir)) if original is not None else ""
    text = _text_to_change(target, settings, writing=not arguments.dry_run)
    for finding in machine.cores(settings):
        if finding.state == WARN and finding.subject == "cores":
            print(f"genai-server: {finding.found}, which affects the measurement; {finding.remedy}", file=sys.stderr)
    if warning := busy():
        print(f"genai-server: {warning}", file=sys.stderr)
    with _measuring(settings, steps()) as show:
        measured = measure(settings, arguments.seconds, show)
    best, entry = measured.best(), measured.best_entry
    print_report(screen(), [table(measured, best)])
    if not arguments.dry_run:
        text = with_settings(text, best)
        _write(target, with_settings(text, entry, "session") if entry else text, best, entry)
    if original is None:
        print(blocks(Path(settings.model_dir)))
        return 0
    tuned, length = _tuned(settings)

    def built(directory: Path) -> Rates:
        return _both(replace(tuned, model_dir=directory, cache_dir=None), best["threads"], length, arguments.seconds)

    with _measuring(settings, len(SIZES)) as show:
        rates = measure_each(original, tuned.model_dir, precision, built, show)
    print_report(screen(), table_of_blocks(rates, tuned.model_dir, f"{original.source} --precision {precision}"))
    return 0


def busy(seconds: float = 0.5) -> str:
    """A warning if other programs use the machine's cores; otherwise ""."""
    cores = psutil.cpu_count() or 1
    used = psutil.cpu_percent(seconds) / 100 * cores
    if used < _MAX_BUSY * cores:
        return ""
    return (
        f"other programs use {used:.1f} of {cores} cores, so the result will not be the best for an idle machine; "
        "stop them, and tune again"
    )


@contextmanager
def _measuring(settings: Settings, total: int) -> Iterator[Show]:
    """Show the progress, and report failures in one line."""
    try:
        with measuring_bar("") as show:
            done = itertools.count()
            yield lambda title: show(next(done), total, f"measuring {title}")
            show(total, total, "done")
    except (ConfigurationError, ExportFailed):
        raise
    except Exception as error:  # ONNX Runtime's errors have no base of their own
        raise ConfigurationError(f"{settings.model_dir} cannot be run: {error}; see genai-server doctor") from error


def _write(target: Path, text: str, best: Mapping[str, int], entry: Mapping[str, str]) -> None:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise ConfigurationError(
            f"{target}: write session as a table, [session], so that an entry can be added"
        ) from None
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{target}: cannot be written: {(error.strerror or str(error)).lower()}") from None
    written = {**best, **entry}
    print(f"written to {target}: {', '.join(f'{name} = {value}' for name, value in written.items())}")
    served = load_settings({"config": str(target)})
    for name, value in best.items():
        if (given := getattr(served, name)) != value:
            print(f"{environment_variable(name)}={given} in the environment or .env overrides it: remove that")


def _options(settings: Settings) -> DeviceOptions:
    """The CPU's options of the measured model, by the name under which it is served, if it is."""
    directory = Path(settings.model_dir).resolve()
    names = (name for name, path in settings.served.items() if Path(path).resolve() == directory)
    return device_options(settings, next(names, settings.model_name), ["cpu"])["cpu"]


def _text_to_change(target: Path, settings: Settings, *, writing: bool) -> str:
    """The text of the configuration file. Raises ConfigurationError if a result could not be written or would have no
    effect.
    """
    options = _options(settings)
    if THREADS in options.session:
        raise ConfigurationError(
            f"[session] {THREADS}={options.session[THREADS]}: remove it, because it would override the result"
        )
    if writing and not os.access(target if target.exists() else target.absolute().parent, os.W_OK):
        raise ConfigurationError(f"{target}: cannot be written; name another file with --config")
    try:
        return target.read_text(encoding="utf-8") if target.exists() else ""
    except OSError as error:
        raise ConfigurationError(f"{target}: cannot be read: {(error.strerror or str(error)).lower()}") from None


def _tuned(settings: Settings) -> tuple["Tuned", int]:
    """The model, and the longest sequence allowed."""
    from genai_server.engine.measuring.tuning import Tuned

    batched = settings.scheduler in ("auto", "batched")
    model_dir = Path(settings.model_dir)
    context_length = check_model_directory(model_dir).context_length
    length = min(settings.within(None) or _LENGTH, context_length)
    return Tuned(model_dir, settings.cache_path, _options(settings), length, batched), length


def _both(tuned: "Tuned", threads: int, length: int, seconds: float) -> Rates:
    from genai_server.engine.measuring.tuning import decode_rate, prefill_rate

    runner = tuned.open(threads, 1)
    chunk = min(_THREADS_CHUNK, length)
    return prefill_rate(runner, chunk, length, seconds), decode_rate(runner, 1, length, seconds)


def measure(settings: Settings, seconds: float, show: Show) -> Measured:
    """Try all values. `show` is called before each measurement, at most `steps` times."""
    from genai_server.engine.measuring.tuning import decode_rate, prefill_rate

    found = Measured()
    tuned, length = _tuned(settings)
    for threads in _threads():
        show(f"{threads} threads")
        found.prefill_by_threads[threads], found.decode_by_threads[threads] = _both(tuned, threads, length, seconds)
    for name, value in _ENTRIES:
        if name not in tuned.options.entries:
            show(f"{name} = {value}")
            found.by_entry[name, value] = _both(_with(tuned, {name: value}), found.best_threads, length, seconds)
    tuned = _with(tuned, found.best_entry)
    runner = tuned.open(found.best_threads, max(_BATCHES))
    for rows in (rows for rows in _BATCHES if rows <= runner.abilities.max_rows):
        show(f"{rows} at once")
        found.decode_by_batch[rows] = decode_rate(runner, rows, length, seconds)
    for chunk in (chunk for chunk in _CHUNKS if chunk <= length):
        show(f"{chunk} tokens of a prompt")
        found.prefill_by_chunk[chunk] = prefill_rate(runner, chunk, length, seconds)
    return found


def _with(tuned: "Tuned", entry: Mapping[str, str]) -> "Tuned":
    """The model with an entry of the session added."""
    options = structs.replace(tuned.options, entries={**tuned.options.entries, **entry})
    return replace(tuned, options=options)


def steps() -> int:
    """The maximum number of measurements."""
    return len(_threads()) + len(_ENTRIES) + len(_BATCHES) + len(_CHUNKS)


def _threads() -> list[int]:
    """Powers of two and the usable cores. More threads would only wait for each other."""
    cores = usable_cores()
    return sorted({cores, *(2**power for power in range(cores.bit_length()) if 2**power <= cores)})
