"""`genai-server export REPO|DIR|FILE`: builds a model directory from a model in Hugging Face's format or a GGUF file.

It runs onnxruntime-genai's model builder with the settings that are fastest for this server. Models that this builder
does not support are built by mobius, another builder of Microsoft's. Encoders for embeddings and reranking are exported
by PyTorch itself. All need PyTorch, which serving does not. Install the extra `export`, here or in the environment that
--python names.
"""

import argparse
import importlib
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path, PurePosixPath

from genai_server.cli.parser import path_of
from genai_server.cli.pull_command import absolute, add_hub_options, checked_name, fetch_description, print_how_to_serve
from genai_server.cli.screen import download_progress, print_to_stderr, say, size_in_words
from genai_server.config.environment import builder_environment
from genai_server.config.sources import load_settings
from genai_server.engine.model.files import check_model_directory
from genai_server.errors import ConfigurationError, ExportFailed, ModelDirectoryError
from genai_server.hub import builder, gguf_source, quality, store
from genai_server.hub.architectures import count_weights, read_source_config
from genai_server.hub.builder import PRECISIONS, PROVIDERS, Build, cost_of
from genai_server.hub.client import Hub, download
from genai_server.hub.quantized_checkpoint import read_quantization
from genai_server.hub.repository import name_of, select_gguf, select_source, with_tokenizer
from genai_server.model_files.pooling_model import Task, task_of
from genai_server.system.installation import in_shell, this_installation
from genai_server.system.resources import free_memory

# Below this number of weights, 4 bits cost more quality than they save (docs/export.md).
_SMALL = 1_000_000_000
_GIB = 1024**3
_EXTRA_HELP = (
    "They take about 1 GB on the disk, and several more where PyTorch comes with libraries for GPUs, as on Linux."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments and options of `genai-server export` to `parser`, and set `run` as the function that executes
    the command.
    """
    parser.add_argument(
        "source",
        metavar="REPO|DIR|FILE",
        help="such as Qwen/Qwen3-0.6B, a directory with config.json, or a GGUF file",
    )
    parser.add_argument(
        "--include",
        nargs="+",
        default=[],
        metavar="PATTERN",
        help='GGUF file of a repository to build from, such as "*Q4_K_M*"; needed if it has several',
    )
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        help="precision of the weights (default: on CPUs GGUF files keep theirs, and decoders below about 1 billion "
        "weights get int8; others int4; encoders fp32, or int8)",
    )
    parser.add_argument(
        "--task",
        choices=tuple(Task),
        type=Task,
        help="task of the model (default: from its files); rerank for decoders such as Qwen3-Reranker",
    )
    parser.add_argument(
        "--device", choices=tuple(PROVIDERS), default="cpu", help="device that will serve it (default: cpu)"
    )
    parser.add_argument("--to", type=Path, metavar="DIR", help="target directory (default: GENAI_MODELS_DIR/NAME-...)")
    parser.add_argument(
        "--extra",
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        help="further options of the builder; they override this command's own",
    )
    parser.add_argument(
        "--builder",
        choices=builder.BUILDERS,
        default=builder.AUTO,
        help="builder of decoders; auto takes mobius for what onnxruntime-genai's cannot build (default: auto)",
    )
    parser.add_argument(
        "--unchecked",
        action="store_true",
        help="build even what the installed builder cannot build, for a corrected builder",
    )
    parser.add_argument(
        "--python",
        type=Path,
        default=Path(sys.executable),
        metavar="FILE",
        help="Python of an environment with PyTorch",
    )
    parser.add_argument("--yes", action="store_true", help="install missing packages without asking")
    add_hub_options(parser)
    parser.add_argument(
        "--serve",
        nargs=argparse.REMAINDER,
        metavar="OPTION",
        help="serve the model once it is built; what follows are options of serve",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Execute `genai-server export`: build a model directory from a directory, a GGUF file or a repository on a hub.
    `arguments` are the parsed command line. Returns the exit status.

    Raises ConfigurationError for arguments that do not fit the model, PullFailed if a download fails, and ExportFailed
    if the build fails.
    """
    if wrong := [option for option in arguments.extra if "=" not in option]:
        raise ConfigurationError(f"--extra {wrong[0]}: an option is NAME=VALUE")
    _prepare_environment(arguments)  # before anything is fetched
    local = path_of(arguments.source)
    gguf = local if local.is_file() else gguf_source.find_gguf(local) if local.is_dir() else None
    if gguf is not None:
        directory = _directory(arguments, gguf.stem, _check_gguf(arguments, gguf))
        with store.locked(directory):
            _build_gguf(arguments, gguf.resolve(), directory, store.Origin(str(gguf.resolve())))
    elif local.is_dir():
        source = local.resolve()
        directory = _target(arguments, source.name, source)
        with store.locked(directory):
            _build(arguments, source, directory, store.Origin(str(source)))
    else:
        directory = _build_from_hub(arguments, checked_name(arguments.source))
    if arguments.serve is not None:
        from genai_server.cli import main

        return main(["serve", str(directory), *arguments.serve])
    print_how_to_serve(directory)
    return 0


def _prepare_environment(arguments: argparse.Namespace) -> None:
    """Install the packages for building models if some are missing and the user agrees.

    Raises ConfigurationError if packages are then still missing, or cannot be installed.
    """
    missing = builder.missing_modules(arguments.python)
    installation = this_installation()
    if missing and installation.source is not None:
        python = str(arguments.python)
        command = installation.install_command(*builder.extras_for(missing), python=python)
        print_to_stderr(f"{python} lacks {', '.join(missing)}, which build models. {_EXTRA_HELP}")
        if arguments.yes or _agrees(f"install them now (--yes does so without asking), with {in_shell(command)}?"):
            done = subprocess.run(command, stdout=sys.stderr, check=False)
            if done.returncode:
                raise ConfigurationError(
                    f"{in_shell(command)} failed (status {done.returncode}), as the lines above say"
                )
            importlib.invalidate_caches()
    builder.check_environment(arguments.python)


def _agrees(question: str) -> bool:
    """Ask a yes-or-no question on the terminal, and return whether the user answers yes. Without a terminal, False is
    returned.
    """
    if sys.stdin is None or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _print_cost(order: Build) -> None:
    """Print an estimate of the time and memory that a build takes, or that it is not known for this kind of model."""
    if (cost := cost_of(order)) is None:
        say("how long this takes is not known for this kind of model")
        return
    free = free_memory()
    short = "" if cost.memory <= free else f", but only {free / _GIB:.1f} GiB are free"
    say(
        f"{cost.weights / 1e9:.1f} billion weights: building takes about {_minutes(cost.seconds)} on two cores, and "
        f"{cost.memory / _GIB:.1f} GiB of memory{short}; the model will have about {cost.size / _GIB:.1f} GiB"
    )


def _minutes(seconds: float) -> str:
    number = max(1, round(seconds / 60))
    return "a minute" if number == 1 else f"{number} minutes"


def _target(arguments: argparse.Namespace, name: str, source: Path) -> Path:
    """Check that a model can be built as the parsed command line says, print what this costs, and return the path of
    the directory to build. Raises ConfigurationError if the model cannot be built or the directory exists.

    `name` is the model's name, and `source` its directory, which needs to contain only the files that describe the
    model, not its weights.
    """
    order = _chosen(arguments, _order(arguments, source, source))
    if order.is_encoder:
        builder.check_environment(arguments.python, builder.NEEDED_FOR_ENCODERS)
    directory = _directory(arguments, name, order.precision)
    _print_cost(order)
    return directory


def _directory(arguments: argparse.Namespace, name: str, precision: str) -> Path:
    """Return the path of the directory to build: the argument --to, or a directory in the folder of models that is
    named after the model (`name`), the precision and the device. Raises ConfigurationError if the directory already
    exists.
    """
    default = store.place_of(load_settings().models_path, f"{name}-{precision}-{arguments.device}")
    directory = absolute(arguments.to or default)
    if directory.exists():
        raise ConfigurationError(f"{directory} already exists; name another directory with --to, or remove it")
    return directory


def _build_from_hub(arguments: argparse.Namespace, name: str) -> Path:
    """Download the repository `name` from the hub, build a model directory from it, and remove the download. Returns
    the path of the built directory. `arguments` are the parsed command line.

    Raises ConfigurationError if the model cannot be built, PullFailed if the download fails, and ExportFailed if the
    build fails.
    """
    hub = Hub(arguments.token)
    repository = hub.repository(name, arguments.revision)
    origin = store.Origin(name, repository.commit)
    gguf = select_gguf(repository, arguments.include)
    with tempfile.TemporaryDirectory() as folder:
        if gguf is None:
            fetch_description(hub, repository, Path(folder))
            directory = _target(arguments, name, Path(folder))
        else:
            precision = _check_gguf(arguments, gguf_source.fetch_beginning(hub, repository, gguf, Path(folder)))
            directory = _directory(arguments, PurePosixPath(gguf.path).stem, precision)
    selection = select_source(repository) if gguf is None else with_tokenizer(repository, gguf)
    say(f"fetching {size_in_words(selection.size)} from {hub.endpoint}")
    with store.locked(directory):
        source = store.staging(directory, "source")
        with download_progress(selection) as watch:
            download(hub, repository, selection, source, watch)
        if gguf is None:
            _build(arguments, source, directory, origin)
        else:
            _build_gguf(arguments, source / name_of(gguf), directory, store.Origin(name, repository.commit, gguf.path))
        shutil.rmtree(source, ignore_errors=True)
    return directory


def _check_gguf(arguments: argparse.Namespace, path: Path) -> str:
    """Check that a model can be built from the GGUF file at `path`, print what this costs, and return the precision of
    the build. The file's weights are not needed: they may be zeros.

    Raises ConfigurationError and ExportFailed, with the reason, if it cannot be built.
    """
    builder.check_environment(arguments.python, builder.NEEDED_FOR_GGUF)
    with tempfile.TemporaryDirectory() as folder:
        gguf_source.unpack(path, Path(folder), arguments.python, builder_environment(), lambda _: None)
        order = _chosen(arguments, _order(arguments, Path(folder), Path(folder), path))
        _print_cost(order)
        return order.precision


def _build_gguf(arguments: argparse.Namespace, path: Path, directory: Path, origin: store.Origin) -> None:
    """Build the model directory `directory` from the GGUF file at `path`. The file is first unpacked into a temporary
    folder next to that directory. `origin` says where the file comes from, and is recorded in the directory.

    Raises ConfigurationError if no model can be built from the file, and ExportFailed if unpacking or building fails.
    """
    source = store.staging(directory, "unpacked")
    shutil.rmtree(source, ignore_errors=True)
    try:
        say(f"unpacking {path.name}")
        bits = 32 if arguments.precision == "fp32" else 16
        gguf_source.unpack(path, source, arguments.python, builder_environment(), say, bits=bits)
        _build(arguments, source, directory, origin, path)
    finally:
        shutil.rmtree(source, ignore_errors=True)


def _build(
    arguments: argparse.Namespace,
    source: Path,
    directory: Path,
    origin: store.Origin,
    gguf: Path | None = None,
) -> None:
    folder = store.staging(directory, "export")
    shutil.rmtree(folder, ignore_errors=True)
    order = _chosen(arguments, _order(arguments, source, folder, gguf))
    built = f"{order.precision} {order.device} {'mobius' if order.uses_mobius else ' '.join(order.options)}"
    say(f"building {directory.name} ({built})")
    if why := _why(arguments, order):
        say(why)
    try:
        builder.build(order, arguments.python, builder_environment(), say)
        check_model_directory(folder)
        if order.device == "cpu":
            quality.check_graphs(folder, builder_environment())
        if order.device == "cpu" and order.task is Task.GENERATE:
            say("measuring")
            say(quality.measure(folder, source, arguments.python, builder_environment()))
        store.install(folder, directory, store.Origin(origin.source, origin.revision, origin.folder, built=built))
    except KeyboardInterrupt:
        raise ExportFailed("stopped") from None
    except ModelDirectoryError as error:
        raise ExportFailed(f"the builder's output is not a complete model: {error.message}") from None
    except BrokenPipeError:  # the reader of the output has exited
        raise
    except OSError as error:
        raise ExportFailed(f"{error.filename or folder}: {error.strerror}") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{directory} is built and checked; the builder's log is {builder.LOG} there")


def _chosen(arguments: argparse.Namespace, order: Build) -> Build:
    """Return `order` with the model builder that builds it: the one that the parsed command line names, or else the
    first that supports the model. Raises ConfigurationError if no builder can build it.
    """
    return builder.choose(order, arguments.python, arguments.builder, unchecked=arguments.unchecked)


def _order(arguments: argparse.Namespace, source: Path, folder: Path, gguf: Path | None = None) -> Build:
    """Return the build that the parsed command line asks for, with task and precision filled in. Raises
    ConfigurationError if the arguments do not fit the model.

    `source` is the directory of the model to build, and `folder` the directory to write. `gguf` is the GGUF file from
    which `source` was unpacked; None for other models.
    """
    task = arguments.task or task_of(source)
    order = Build(source, folder, arguments.precision or "", arguments.device, tuple(arguments.extra), task)
    if gguf is not None and arguments.precision is None and arguments.device == "cpu":
        return replace(order, precision=builder.AS_STORED, gguf=gguf)
    if not order.is_encoder:
        return _with_quantization(arguments, order)
    order = replace(order, precision=order.precision or "fp32")
    if order.precision not in builder.ENCODER_PRECISIONS:
        precisions = ", ".join(builder.ENCODER_PRECISIONS)
        raise ConfigurationError(f"--precision {order.precision}: an encoder is built in one of {precisions}")
    if arguments.extra:
        raise ConfigurationError(f"--extra {arguments.extra[0]}: there are no further options for an encoder")
    return order


def _default_precision(order: Build) -> str:
    """Return the precision in which a decoder is built if the user names none and its weights are not quantized yet:
    "int8" for a small model on a CPU, otherwise "int4".
    """
    config = read_source_config(order.source)
    number = count_weights(config)
    is_small = number is not None and number < _SMALL and "quantization_config" not in config
    return "int8" if is_small and order.device == "cpu" else "int4"


def _why(arguments: argparse.Namespace, order: Build) -> str | None:
    """Return a sentence for the user that explains in which form the weights of the build are stored, and why. Returns
    None if there is nothing to explain, because the user or the source has determined the form.
    """
    if order.gguf is not None:
        return "the numbers of the file are kept; those of types that ONNX Runtime cannot hold are rounded to 8 bits"
    if order.uses_mobius:
        return "mobius builds it; embedding and routers of experts keep 32 bits, and all experts are computed"
    if order.is_mixed:
        return "4 bits by k_quant_mixed in blocks of 32, with embedding and head in 8 bits: the least loss at this size"
    if order.precision == "int8" and arguments.precision is None and order.has_eight_bit_ends:
        return "8 bits, because models below about 1 billion weights lose much in 4 (--precision int4 is smaller)"
    return None


def _with_quantization(arguments: argparse.Namespace, order: Build) -> Build:
    """Return the build of a decoder with its precision filled in. If the source's weights are already quantized, they
    determine the precision and the block size; otherwise the precision is the one that the user names, or the default.

    Raises ConfigurationError if the command line asks for other values than the quantized weights have, or if these
    weights cannot be built.
    """
    try:
        quantization = read_quantization(read_source_config(order.source), order.device)
    except ConfigurationError:
        if not arguments.unchecked:
            raise
        quantization = None
    if quantization is None:
        return replace(order, precision=order.precision or _default_precision(order))
    refusal = f"the weights are quantized already ({quantization})"
    if order.precision not in ("", quantization.precision):
        raise ConfigurationError(
            f"--precision {order.precision}: {refusal} and can be built in {quantization.precision}"
        )
    option = f"block_size={quantization.group_size}"
    if wrong := [extra for extra in arguments.extra if extra.startswith("block_size=") and extra != option]:
        raise ConfigurationError(f"--extra {wrong[-1]}: {refusal} and can be built with {option}")
    group_size = quantization.group_size
    return replace(order, precision=quantization.precision, quantization=quantization, block_size=group_size)
