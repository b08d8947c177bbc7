"""`genai-server models`: the models in GENAI_MODELS_DIR, which were downloaded or built.

`list`, the default, shows the models. `check` verifies each file of a model. `remove` deletes a model.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from genai_server.cli.model_argument import find
from genai_server.cli.screen import show, size_in_words
from genai_server.config.sources import load_settings
from genai_server.engine.model.files import check_model_directory
from genai_server.engine.model.inventory import inventory
from genai_server.errors import ConfigurationError, ModelDirectoryError
from genai_server.hub import store
from genai_server.text.prompts.chat_template import load_chat_templates
from genai_server.text.prompts.prompt import PromptWriter
from genai_server.text.tool_formats.all_formats import read_dialect

_MIB = 1024 * 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands `list`, `check` and `remove` of `genai-server models` to `parser`, each with the function
    that executes it.
    """
    parser.set_defaults(run=run_list)
    commands = parser.add_subparsers(metavar="COMMAND")
    commands.add_parser("list", help="the models with their sizes").set_defaults(run=run_list)
    check = commands.add_parser("check", help="verify each file of a model directory")
    check.add_argument("model", metavar="DIR|NAME", help="a directory, or the name of one in GENAI_MODELS_DIR")
    check.set_defaults(run=run_check)
    remove = commands.add_parser("remove", help="remove a model, or an unfinished download of one")
    remove.add_argument("name", metavar="NAME")
    remove.set_defaults(run=run_remove)


def run_list(_: argparse.Namespace) -> int:
    """Execute `genai-server models list`: print the name, size and origin of each model in GENAI_MODELS_DIR, also of
    incomplete ones. Returns the exit status.
    """
    models = load_settings().models_path
    paths, unfinished = store.models_in(models), store.unfinished_in(models)
    width = max((len(path.name) for path in paths), default=0)
    for path in paths:
        print(f"{path.name:<{width}}  {store.size_of(path) / _MIB:8.0f} MiB  {_origin(path)}{_fault(path)}")
    for path in unfinished:
        name = path.stem.removeprefix(".")
        print(f"{name:<{width}}  {store.size_of(path) / _MIB:8.0f} MiB  incomplete; pull or export it again")
    if not paths and not unfinished:
        print(f"no models in {models}; genai-server pull REPO fetches one")
    return 0


def run_check(arguments: argparse.Namespace) -> int:
    """Execute `genai-server models check`: print for each file of a model whether it is complete and unchanged, and how
    conversations are rewritten for the model's chat template. `arguments` are the parsed command line.

    Returns the exit status: 1 if a file has a fault, else 0. Raises ConfigurationError if there is no such model, and
    ModelDirectoryError if its chat template cannot be read.
    """
    directory = find(arguments.model)
    origin = store.read_origin(directory)
    changed = store.changed_files(directory, origin) if origin else []
    failed = False
    for entry in inventory(directory):
        fault, remedy = entry.fault, entry.remedy
        if not fault and entry.name in changed and origin:
            fault, remedy = "differs from the fetched file", f"genai-server pull {origin.source} repairs it"
        failed |= bool(fault)
        state = ("fail ", "bold red") if fault else ("ok   ", "green")
        show(state, f" {entry.name}: {fault or size_in_words(entry.size)}")
        if remedy:
            print(f"      → {remedy}")
    if origin and origin.files and not changed:
        print(f"ok    all {len(origin.files)} files match the hashes of {origin.source}, commit {origin.revision[:8]}")
    if not failed:
        for adaptation in _adaptations(directory):
            print(f"      chat template: {adaptation}")
    return 1 if failed else 0


def _adaptations(directory: Path) -> Sequence[str]:
    """Return sentences about the parts of conversations that are rewritten for the model's chat template."""
    templates = load_chat_templates(directory)
    dialect = read_dialect("\n".join(template.source for template in templates.values()))
    return PromptWriter(templates, tool_format=dialect.tool_format).adaptations


def run_remove(arguments: argparse.Namespace) -> int:
    """Execute `genai-server models remove`: delete a model directory and incomplete downloads of it. `arguments` are
    the parsed command line. Returns the exit status.

    Raises ConfigurationError if there is no model with this name or it cannot be removed, and PullFailed if another
    process is working on it.
    """
    models = load_settings().models_path
    if not models.is_dir():
        raise ConfigurationError(f"there are no models in {models}")
    with store.locked(models / Path(arguments.name).name):
        size = store.remove(models, arguments.name)
    print(f"{arguments.name} is removed: {size / _MIB:.0f} MiB")
    return 0


def _origin(path: Path) -> str:
    origin = store.read_origin(path)
    if origin is None:
        return "of unknown origin"
    return " ".join(part for part in (origin.source, origin.folder, origin.revision[:8], origin.built) if part)


def _fault(path: Path) -> str:
    try:
        check_model_directory(path)
    except ModelDirectoryError as error:
        return f"  BROKEN: {error.message}"
    return ""
