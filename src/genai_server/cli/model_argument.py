"""Resolves the argument MODEL of commands, which may be a model directory, the name of one in GENAI_MODELS_DIR, or a
repository on a hub: `find` looks for a directory, and `fetched` also downloads a repository.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from genai_server.cli.parser import path_of
from genai_server.cli.pull_command import Source, absolute, in_folder, place_of, pull, source_of
from genai_server.cli.screen import say
from genai_server.config.settings import Settings
from genai_server.config.sources import load_settings
from genai_server.errors import ConfigurationError, PullFailed, did_you_mean, quoted
from genai_server.hub import store
from genai_server.hub.client import Hub
from genai_server.hub.repository import could_be_repository
from genai_server.hub.short_names import SHORT_NAMES

# What to do with a file that is given as a model, by its suffix.
_FOLDER = "a model is a folder with a genai_config.json"
_FILES = {".gguf": "genai-server export builds a model directory from it"}


def find(text: str, models: Path | None = None) -> Path:
    """Return the model directory that `text` names: by its path, or by its name in the folder `models` (default:
    GENAI_MODELS_DIR).

    Raises ConfigurationError, with a suggestion, if there is no such directory.
    """
    models = models or load_settings().models_path
    for path in (path_of(text), models / text) if text else ():
        with suppress(OSError):  # of a name that is too long, or a folder that is not readable
            if path.is_dir():
                return path
    if _is_file(text):
        raise ConfigurationError(f"{quoted(text)} is a file; {_FILES.get(path_of(text).suffix, _FOLDER)}")
    suggestion = ""
    if text not in SHORT_NAMES:
        suggestion = did_you_mean(text, [*(path.name for path in store.models_in(models)), *SHORT_NAMES])
    raise ConfigurationError(f"no model {quoted(text)} here or in {models}{suggestion}")


def _is_file(text: str) -> bool:
    with suppress(OSError):
        return path_of(text).is_file()
    return False


def check_no_other(text: str, model_dir: str | None, models: str) -> None:
    """Raise ConfigurationError if another setting than the argument MODEL (`text`) also says what is served: the option
    --model-dir (`model_dir`) or the setting GENAI_MODELS (`models`). Both are None or "" if they are not given.
    """
    if model_dir or models:
        option = f"--model-dir {model_dir}" if model_dir else f"GENAI_MODELS={models}"
        raise ConfigurationError(f"both MODEL={text} and {option} say what is served; leave one of them out")


def fetched(
    text: str,
    settings: Settings,
    revision: str | None = None,
    token: str | None = None,
    report: Callable[[str], None] = say,
) -> Path:
    """Return the directory of the model that `text` names: a directory, a model in the folder of models, or a
    repository (`OWNER/NAME`, or a short name), which is downloaded into the folder of models unless it is there.

    `revision` is a branch, tag or commit of the repository, and `token` an access token for the hub. `report` is called
    with lines about the progress. Raises ConfigurationError if there is no such model, and PullFailed if the download
    fails.
    """
    models = settings.models_path
    try:
        return find(text, models)
    except ConfigurationError as error:
        if _is_file(text):
            raise
        if not could_be_repository(text) and text not in SHORT_NAMES:
            remedy = "genai-server models lists those that are there; OWNER/NAME fetches one"
            raise ConfigurationError(f"{error}; {remedy}") from None
        not_here = error.message
    source = replace(source_of(text, settings), revision=revision)
    if source.short_name and (path := _of_source(models, source)) is not None:
        return path
    directory = absolute(place_of(models, source))
    origin = store.read_origin(directory)
    is_here = origin is not None and origin.source == source.name and source.include in ([], in_folder(origin.folder))
    if not is_here or revision:
        try:
            report(pull(Hub(token), source, directory, report=report))
        except PullFailed as error:
            raise PullFailed(f"{not_here}; as a repository: {error}") from None
    return directory


def _of_source(models: Path, source: Source) -> Path | None:
    """Return the directory in the folder `models` that contains a model downloaded from `source` before; None if there
    is none.
    """
    for path in store.models_in(models):
        origin = store.read_origin(path)
        if origin is not None and origin.source == source.name:
            folder = in_folder(origin.folder)
            if not source.include or any(fnmatchcase(path, pattern) for path in folder for pattern in source.include):
                return path
    return None
