"""`genai-server cache`: the prefix cache on disk, in GENAI_PREFIX_CACHE_DIR.

`list`, the default, shows how much the cache holds for each model. `clear` empties the cache for one or all models,
also while servers use it.
"""

import argparse
import time

from genai_server.config.sources import load_settings
from genai_server.engine.disk_cache_files import clear, stored_models
from genai_server.errors import ConfigurationError

_MIB = 1024 * 1024
_DAY = 24 * 3600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands `list` and `clear` of `genai-server cache` to `parser`, each with the function that executes
    it.
    """
    parser.set_defaults(run=run_list)
    commands = parser.add_subparsers(metavar="COMMAND")
    commands.add_parser("list", help="each model with the size of its prefixes").set_defaults(run=run_list)
    clearing = commands.add_parser("clear", help="remove the prefixes of a model, or of all")
    clearing.add_argument("model", metavar="NAME", nargs="?", help="as `list` shows it; all without a name")
    clearing.set_defaults(run=run_clear)


def run_list(_: argparse.Namespace) -> int:
    """Execute `genai-server cache list`: print for each model how many bytes and files of its prefix cache are on disk,
    and when they were last used. Returns the exit status.
    """
    root = load_settings().prefix_cache_path
    models = stored_models(root)
    width = max((len(model.name) for model in models), default=0)
    for model in models:
        age = _age_in_words(time.time() - model.last_used)
        print(f"{model.name:<{width}}  {model.num_bytes / _MIB:8.0f} MiB  {model.num_files:6} files, last used {age}")
    if not models:
        print(f"no prefixes in {root}; GENAI_PREFIX_CACHE_BYTES makes a server keep them")
    return 0


def run_clear(arguments: argparse.Namespace) -> int:
    """Execute `genai-server cache clear`: remove the prefix cache on disk of the model that `arguments` name, or of all
    models. Returns the exit status.

    Raises ConfigurationError if the named model has no prefix cache.
    """
    root = load_settings().prefix_cache_path
    models = [model for model in stored_models(root) if arguments.model in (None, model.name)]
    if arguments.model is not None and not models:
        raise ConfigurationError(f"there are no prefixes of a model {arguments.model} in {root}")
    for model in models:
        clear(root, model.name)
    size = sum(model.num_bytes for model in models)
    print(f"removed {size / _MIB:.0f} MiB of {len(models)} model{'' if len(models) == 1 else 's'} from {root}")
    return 0


def _age_in_words(seconds: float) -> str:
    for unit, length in (("day", _DAY), ("hour", 3600.0), ("minute", 60.0)):
        if seconds >= length:
            number = int(seconds // length)
            return f"{number} {unit}{'' if number == 1 else 's'} ago"
    return "just now"
