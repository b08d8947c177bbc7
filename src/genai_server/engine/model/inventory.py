"""Lists the files of a model directory (`inventory`), with what is wrong with each and how to repair that, for the
commands `genai-server models` and `genai-server doctor`.

`files.check_model_directory`, which runs before a model is loaded, stops at the first fault and does not read the
graphs; this module checks everything.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import onnx

from genai_server.engine.model.files import (
    CHAT_TEMPLATE,
    CONFIG,
    TOKENIZER,
    TOKENIZER_CONFIG,
    check_model_directory,
    external_files,
    is_lfs_pointer,
    named_files,
    read_config,
    remedy,
)
from genai_server.errors import ModelDirectoryError
from genai_server.model_files.pooling_model import POOLING_FILES, Task, graph_of, module_configs, task_of
from genai_server.model_files.speech_and_vision import AUDIO_PROCESSOR, GENERATION


@dataclass(frozen=True)
class Entry:
    """A line in the list of a model directory's files: a file that the directory has or should have, with its size in
    bytes (0 if it is missing), what is wrong with it, and what the operator can do.
    """

    name: str
    size: int
    # What is wrong with it; "" if nothing was found.
    fault: str = ""
    remedy: str = ""


def inventory(directory: Path) -> Iterator[Entry]:
    """Yield an entry for each file that the model in `directory` requires, with what is wrong with the file. If all
    files are right and the directory is not, a last entry with the name "." says why.
    """
    entries = list(_entries(directory))
    yield from entries
    if not any(entry.fault for entry in entries):
        try:
            check_model_directory(directory)
        except ModelDirectoryError as error:
            yield Entry(".", 0, error.message)


def _entries(directory: Path) -> Iterator[Entry]:
    task = task_of(directory)
    if task.pools:
        yield from _pooling_entries(directory)
        return
    try:
        config = read_config(directory)
    except ModelDirectoryError as error:
        yield _entry(directory, CONFIG, error.message)
    else:
        yield _entry(directory, CONFIG)
        for name in named_files(config):
            yield _entry(directory, name)
            if name.endswith(".onnx"):
                yield from _weights(directory, name)
    if task is Task.TRANSCRIBE:
        yield _json_entry(directory, AUDIO_PROCESSOR)
        if (directory / GENERATION).exists():
            yield _json_entry(directory, GENERATION)
    yield _json_entry(directory, TOKENIZER)
    yield _json_entry(directory, TOKENIZER_CONFIG)
    if (directory / CHAT_TEMPLATE).exists():
        yield _entry(directory, CHAT_TEMPLATE)


def _pooling_entries(directory: Path) -> Iterator[Entry]:
    """Yield entries for the files that a model for embeddings or reranking has or should have in `directory`."""
    names = (*POOLING_FILES, *module_configs(directory))
    yield from (_json_entry(directory, name) for name in names if (directory / name).exists())
    try:
        graph = graph_of(directory)
    except ModelDirectoryError as error:
        yield Entry("model.onnx", 0, error.message)
    else:
        yield _entry(directory, graph)
        yield from _weights(directory, graph)
    yield _json_entry(directory, TOKENIZER)
    yield _json_entry(directory, TOKENIZER_CONFIG)


def _entry(directory: Path, name: str, fault: str = "") -> Entry:
    path = directory / name
    if not path.is_file():
        return Entry(name, 0, "is missing", remedy(directory, name))
    try:
        is_pointer = is_lfs_pointer(path)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        return Entry(name, path.stat().st_size, f"cannot be read: {reason}", "let the server's user read it")
    if is_pointer:
        return Entry(
            name, path.stat().st_size, "is Git's pointer to the file, not the file itself", "run git lfs pull there"
        )
    return Entry(name, path.stat().st_size, fault, remedy(directory, name) if fault else "")


def _json_entry(directory: Path, name: str) -> Entry:
    entry = _entry(directory, name)
    if entry.fault:
        return entry
    try:
        json.loads((directory / name).read_bytes())
    except ValueError as error:
        return _entry(directory, name, f"is not JSON: {error}")
    return entry


def _weights(directory: Path, graph: str) -> Iterator[Entry]:
    """Yield entries for the separate files with a graph's weights, which must be large enough for all tensors in them.
    If the graph itself cannot be read, the only entry is about the graph.
    """
    path = directory / graph
    if _entry(directory, graph).fault:
        return
    try:
        onnx.load(str(path), load_external_data=False)
    except Exception as error:  # a broken file may cause any error in its reader
        yield _entry(directory, graph, f"cannot be read: {next(iter(str(error).splitlines()), 'it is broken')}")
        return
    for external, size in external_files(path).items():
        name = str(PurePosixPath(graph).parent / external)
        entry = _entry(directory, name)
        if not entry.fault and entry.size < size:
            entry = _entry(directory, name, f"has {entry.size} of {size} bytes: it is truncated")
        yield entry
