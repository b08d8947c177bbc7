"""`genai-server export REPO|DIR`: builds a model directory from a model in Hugging Face's format.

It runs onnxruntime-genai's model builder with the settings that are fastest for this server. Encoders for embeddings
and reranking are exported by PyTorch itself. Both need PyTorch, which serving does not. Install the extra `export`,
here or in the environment that --python names.
"""

import argparse
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from genai_server.cli.pull_command import (
    absolute,
    add_hub_options,
    checked_name,
    fetch_description,
    say,
    tell_how_to_serve,
)
from genai_server.config.environment import builder_environment
from genai_server.config.sources import load_settings
from genai_server.engine.model.files import check_model_directory
from genai_server.errors import ConfigurationError, ExportFailed, ModelDirectoryError
from genai_server.hub import builder, store
from genai_server.hub.architectures import read_source_config
from genai_server.hub.builder import PRECISIONS, PROVIDERS, Build
from genai_server.hub.client import Hub
from genai_server.hub.download import download
from genai_server.hub.quantized_checkpoint import read_quantization
from genai_server.hub.repository import select_source
from genai_server.pooling_model import Task, task_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("source", metavar="REPO|DIR", help="such as Qwen/Qwen3-0.6B, or a directory with config.json")
    parser.add_argument(
        "--precision", choices=PRECISIONS, help="precision of the weights (default: int4; encoders: fp32, or int8)"
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
    add_hub_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Build a model directory; returns the exit status. Raises ConfigurationError, PullFailed and ExportFailed."""
    if wrong := [option for option in arguments.extra if "=" not in option]:
        raise ConfigurationError(f"--extra {wrong[0]}: an option is NAME=VALUE")
    builder.check_environment(arguments.python)  # before anything is fetched
    local = Path(arguments.source).expanduser()
    if local.is_dir():
        source = local.resolve()
        directory = _target(arguments, source.name, source)
        with store.locked(directory):
            _build(arguments, source, directory, store.Origin(str(source)))
    else:
        directory = _build_from_hub(arguments, checked_name(arguments.source))
    tell_how_to_serve(directory)
    return 0


def _target(arguments: argparse.Namespace, name: str, source: Path) -> Path:
    """The directory to build, after checks that it can be built. Raises ConfigurationError.

    The `source` needs to contain only the files that describe the model.
    """
    order = _order(arguments, source, source)
    if order.is_encoder:
        builder.check_environment(arguments.python, for_encoders=True)
    if not arguments.unchecked:
        builder.check_source(order, arguments.python)
    place = store.place_of(load_settings().models_path, f"{name}-{order.precision}-{arguments.device}")
    directory = absolute(arguments.to or place)
    if directory.exists():
        raise ConfigurationError(f"{directory} already exists; name another directory with --to, or remove it")
    return directory


def _build_from_hub(arguments: argparse.Namespace, name: str) -> Path:
    """Build from the hub: the original is fetched like a model, and removed after a successful build."""
    hub = Hub(arguments.token)
    repository = hub.repository(name, arguments.revision)
    with tempfile.TemporaryDirectory() as folder:
        fetch_description(hub, repository, Path(folder))
        directory = _target(arguments, name, Path(folder))
    with store.locked(directory):
        source = store.staging(directory, "source")
        download(hub, repository, select_source(repository), source, tell=say)
        _build(arguments, source, directory, store.Origin(name, repository.commit))
        shutil.rmtree(source, ignore_errors=True)
    return directory


def _build(arguments: argparse.Namespace, source: Path, directory: Path, origin: store.Origin) -> None:
    folder = store.staging(directory, "export")
    shutil.rmtree(folder, ignore_errors=True)
    order = _order(arguments, source, folder)
    if not arguments.unchecked:
        builder.check_source(order, arguments.python)
    built = f"{order.precision} {order.device} {' '.join(order.options)}"
    say(f"building {directory.name} ({built})")
    try:
        builder.build(order, arguments.python, builder_environment(), say)
        check_model_directory(folder)
        store.install(folder, directory, store.Origin(origin.source, origin.revision, built=built))
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


def _order(arguments: argparse.Namespace, source: Path, folder: Path) -> Build:
    """The build that the arguments ask for. Raises ConfigurationError if it is impossible."""
    task = arguments.task or task_of(source)
    order = Build(source, folder, arguments.precision or "", arguments.device, tuple(arguments.extra), task)
    if not order.is_encoder:
        return _with_quantization(arguments, order)
    order = replace(order, precision=order.precision or "fp32")
    if order.precision not in builder.ENCODER_PRECISIONS:
        known = ", ".join(builder.ENCODER_PRECISIONS)
        raise ConfigurationError(f"--precision {order.precision}: an encoder is built in one of {known}")
    if arguments.extra:
        raise ConfigurationError(f"--extra {arguments.extra[0]}: there are no further options for an encoder")
    return order


def _with_quantization(arguments: argparse.Namespace, order: Build) -> Build:
    """The build of a decoder, in the precision of weights that are quantized already. Raises ConfigurationError."""
    try:
        quantization = read_quantization(read_source_config(order.source), order.device)
    except ConfigurationError:
        if not arguments.unchecked:
            raise
        quantization = None
    if quantization is None:
        return replace(order, precision=order.precision or "int4")
    found = f"the weights are quantized already ({quantization})"
    if order.precision not in ("", quantization.precision):
        raise ConfigurationError(f"--precision {order.precision}: {found} and can be built in {quantization.precision}")
    option = f"block_size={quantization.group_size}"
    if wrong := [given for given in arguments.extra if given.startswith("block_size=") and given != option]:
        raise ConfigurationError(f"--extra {wrong[-1]}: {found} and can be built with {option}")
    return replace(order, precision=quantization.precision, quantization=quantization)
