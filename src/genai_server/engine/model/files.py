"""Checks the files of a model directory before a model is loaded (`check_model_directory`), and reads the model's
configuration.

A draft model for speculative decoding is checked, too (`check_draft_model`): it must have the same tokens as the model
for which it drafts, and a valid mask token if it drafts all tokens of a draft in one pass. The files in which an ONNX
file's weights are stored are found without importing onnx, which would make each start a sixth of a second longer.
"""

import json
import os
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from genai_server.errors import ConfigurationError, ModelDirectoryError, quoted
from genai_server.messages.admin import PREFIX
from genai_server.messages.generation_request import ModelInfo, Sampling
from genai_server.model_files.config_files import read_mask_token, read_object
from genai_server.model_files.pooling_model import (
    MODULES,
    PoolingModel,
    Task,
    graph_of,
    module_configs,
    read_pooling_model,
    task_of,
)
from genai_server.model_files.speech_and_vision import (
    AUDIO_PROCESSOR,
    Medium,
    read_speech_model,
    read_vision_model,
    transcribes,
)

# The key of a tensor's external file, which is in every ONNX file that has one.
_LOCATION = b"location"
_MODEL, _TENSOR = "ModelProto", "TensorProto"
# The fields of messages that lead to tensors, by their numbers in onnx.proto3, with the messages that they have.
_LEADING: dict[str, dict[int, str]] = {
    _MODEL: {7: "GraphProto", 25: "FunctionProto"},
    "GraphProto": {1: "NodeProto", 5: _TENSOR, 15: "SparseTensorProto"},
    "FunctionProto": {7: "NodeProto"},
    "NodeProto": {5: "AttributeProto"},
    "AttributeProto": {
        5: _TENSOR,
        6: "GraphProto",
        10: _TENSOR,
        11: "GraphProto",
        22: "SparseTensorProto",
        23: "SparseTensorProto",
    },
    "SparseTensorProto": {1: _TENSOR, 2: _TENSOR},
}
# Fields of a tensor, a value of the second one, and fields of the entries of the first one.
_EXTERNAL_DATA, _DATA_LOCATION = 13, 14
_EXTERNAL = 1
_KEY, _VALUE = 1, 2
CONFIG = "genai_config.json"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
CHAT_TEMPLATE = "chat_template.jinja"
# Names of outputs with one vector for each text.
VECTORS = ("sentence_embedding", "text_embeds", "pooled_embeddings")
# The message about a model without a chat template.
NO_CHAT_TEMPLATE = "has no chat template: it takes raw prompts (/v1/completions), and chats get a 400"
GIVE_A_TEMPLATE = "set one with GENAI_CHAT_TEMPLATE or --chat-template: a file, or a name such as chatml"
# The messages about a model that also takes images or audio in its original form.
TEXT_ONLY = "is served for text only: what the original has for images or audio is left out"
NO_AUDIO = "is served for text and images: what the original has for audio is left out"
# The end of such a model's type, and the one type with this end that has no other parts.
_TEXT_PART, _WHOLE = "_text", "gemma3_text"
# Sections of a model's configuration for images and audio.
_VISION, _SPEECH = "vision", "speech"
# Keys of the configuration whose values are files that onnxruntime-genai reads.
_FILE_KEYS = ("filename", "config_filename", "adapter_filename")
# How images are prepared, unless the configuration names another file.
_PROCESSOR = "processor_config.json"
_MORE_TEMPLATES = "additional_chat_templates/*.jinja"
# Matches names of settings whose values are files or folders, such as filename, or ONNX Runtime's ep.context_file_path.
_FILE = re.compile(r"(?<!pro)file|path|folder|director|(^|[._])dir($|[._])")
# Part of the names of settings such as custom_ops_library, with which onnxruntime would run code from the model.
_CODE = "library"
# The setting that says where ONNX Runtime writes its profiles.
_PROFILING = "enable_profiling"
# The library's limit for numbers of tokens and token ids.
_MAX_TOKENS = 2**31
# The beginning of the pointer that Git leaves in place of a large file without LFS.
_LFS_POINTER = b"version https://git-lfs"
# How far nested models are searched, in levels and in folders, and how many of them an error names.
_MAX_DEPTH, _MAX_SEARCHED, _MAX_NAMED = 5, 500, 6
_FROM_THE_ORIGINAL = "copy it from the original model"
_FROM_THE_BUILDER = "fetch or build the directory again (genai-server pull, genai-server export)"


def external_files(onnx_file: Path) -> dict[str, int]:
    """Return the names of the separate files in which the weights of an ONNX file are stored, each with the size in
    bytes that it must have at least. The names are relative to the folder of `onnx_file`.

    Returns an empty dictionary for a file that is no ONNX graph, because ONNX Runtime reports what is wrong with it.
    Raises OSError if the file cannot be read.
    """
    data = onnx_file.read_bytes()
    if _LOCATION not in data:
        return {}
    needed: dict[str, int] = {}
    try:
        for tensor in _tensors(data, _MODEL):
            fields = _fields(tensor)
            if (_DATA_LOCATION, _EXTERNAL) in fields:
                entries = (dict(_fields(entry)) for number, entry in fields if number == _EXTERNAL_DATA)
                where = {entry.get(_KEY, b""): entry.get(_VALUE, b"").decode() for entry in entries}
                end = _number(where.get(b"offset")) + _number(where.get(b"length"))
                name = where.get(_LOCATION, "")
                needed[name] = max(needed.get(name, 0), end)
    except Exception:  # protobuf's errors have no base of their own
        return {}
    return dict(sorted(needed.items()))


def _tensors(data: bytes, message: str) -> Iterator[bytes]:
    """Yield each serialized tensor (TensorProto), at any depth of an ONNX graph, whose weights are stored in a separate
    file.

    `data` is a serialized protobuf message with the graph or a part of it, and `message` is the name of the message's
    type, such as "GraphProto".
    """
    if message == _TENSOR:
        yield data
        return
    leading = _LEADING[message]
    for number, inner in _fields(data):
        if number in leading and _LOCATION in inner:
            yield from _tensors(inner, leading[number])


def _fields(data: bytes) -> list[tuple[int, Any]]:
    """Return the fields of the serialized protobuf message `data`, each as its number and its value, an integer or
    bytes. Raises protobuf's DecodeError if it is no such message.
    """
    from google.protobuf.empty_pb2 import Empty
    from google.protobuf.unknown_fields import UnknownFieldSet

    message = Empty()
    message.ParseFromString(data)
    return [(field.field_number, field.data) for field in UnknownFieldSet(message)]


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdecimal() else 0


def check_model_directory(directory: Path) -> ModelInfo:
    """Check that a model directory has all files that the server needs, and that they name no files outside the
    directory. Returns the description of the model. Called before a model is loaded; weights are not read.

    Raises ModelDirectoryError, whose message names the directory, the file, and often what to do.
    """
    if not directory.is_dir():
        raise ModelDirectoryError(f"model directory {directory} does not exist")
    if (pooling := read_pooling_model(directory)) is not None:
        return _checked_pooling_model(directory, pooling)
    config = read_config(directory)
    try:
        info = model_info(config)
        decoder = str(config["model"]["decoder"]["filename"])
        has_encoder, is_speech_model = "encoder" in config["model"], transcribes(directory)
        if is_speech_model and not config["model"]["encoder"]["filename"]:
            raise KeyError("filename")
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise ModelDirectoryError(f"{directory / CONFIG} lacks or has a wrong value for {error}") from None
    if "block_table" in (config["model"]["decoder"].get("inputs") or {}):
        raise ModelDirectoryError(
            f"{directory} has a decoder with paged attention ({CONFIG} names its block_table), which this server does "
            "not run; build the model without use_paged_attention=true: on CUDA the server pages the KV cache itself"
        )
    _check_names(directory, config)
    if has_encoder and not is_speech_model:
        raise ModelDirectoryError(
            f"{directory} has an encoder and a decoder, and is of a type for speech that this server does not serve"
        )
    named = dict.fromkeys((decoder, *named_files(config)))
    for name in (*named, TOKENIZER, TOKENIZER_CONFIG, *([AUDIO_PROCESSOR] if is_speech_model else [])):
        _check_inside(directory, name, CONFIG)
        _check_present(directory, name, " is missing")
    for name in named:
        _check_external_files(directory, name)
    _check_templates(directory)
    _read_json(directory / TOKENIZER_CONFIG)
    read_vision_model(directory)
    read_speech_model(directory)
    return info


def _checked_pooling_model(directory: Path, model: PoolingModel) -> ModelInfo:
    """Check the files of an embedding or reranking model in `directory`. Returns the description of the model. Raises
    ModelDirectoryError, whose message says what is missing.
    """
    if (directory / CONFIG).is_file():
        _check_names(directory, read_config(directory))
    for name in (model.graph, TOKENIZER, TOKENIZER_CONFIG):
        _check_inside(directory, name, "model directory")
        _check_present(directory, name, " is missing")
    graph = directory / model.graph
    if model.task is Task.EMBED and not model.modes:
        data = graph.read_bytes()
        if not any(name.encode() in data for name in VECTORS):
            lost = [name for name in module_configs(directory) if not (directory / name).is_file()]
            if lost:
                lack = f"{lost[0]}, which {MODULES} names, is missing"
                advice = "copy it from the original, or name that to genai-server pull with --original"
            elif (directory / MODULES).is_file():
                lack = f"{MODULES} names a module, such as Dense, that must be part of the graph"
                advice = "genai-server export builds such a graph of the original"
            else:
                lack = "no file describes the pooling of a text's vectors"
                advice = (
                    f"copy {MODULES} and the folders that it names, such as 1_Pooling, from the original, or name that "
                    "to genai-server pull with --original"
                )
            raise ModelDirectoryError(f"{directory}: {lack}, and {model.graph} has no output {VECTORS[0]}: {advice}")
    _check_external_files(directory, model.graph)
    _check_templates(directory)
    _read_json(directory / TOKENIZER_CONFIG)
    return ModelInfo(model.max_tokens, model.vocab_size, [], Sampling())


def _check_external_files(directory: Path, graph: str) -> None:
    """Check that the separate files with a graph's weights exist in the model directory. `graph` is the name of the
    graph's file there. Raises ModelDirectoryError.
    """
    for name in external_files(directory / graph):
        inner = str(PurePosixPath(graph).parent / name)
        _check_inside(directory, inner, graph)
        _check_present(directory, inner, f", which {graph} names, is missing")


def _check_templates(directory: Path) -> None:
    for path in (directory / CHAT_TEMPLATE, *directory.glob(_MORE_TEMPLATES)):
        _check_inside(directory, str(path.relative_to(directory)), "chat template")


def has_chat_template(directory: Path) -> bool:
    """Whether the model directory has a chat template, which turns chat messages into a prompt. A model without one can
    only be used with raw prompts. `check_model_directory` must have accepted the directory.
    """
    return (directory / CHAT_TEMPLATE).is_file() or bool(_read_json(directory / TOKENIZER_CONFIG).get("chat_template"))


def unsupported_media_message(directory: Path) -> str:
    """Return a message for the operator if the original model takes images or audio that this server does not support
    with the files in `directory`; otherwise "".
    """
    if task_of(directory) is not Task.GENERATE:
        return ""
    model = read_config(directory)["model"]
    kind = str(model.get("type", ""))
    if (vision := read_vision_model(directory)) is not None:
        return NO_AUDIO if _SPEECH in model and vision.medium is Medium.IMAGE else ""
    is_part = kind.endswith(_TEXT_PART) and kind != _WHOLE
    return TEXT_ONLY if is_part or _VISION in model or _SPEECH in model else ""


def named_files(config: Any) -> list[str]:
    """Return the names of all files that a genai_config.json names at any depth, in order. `config` has the contents of
    this file.

    The default file with settings for images is included if the model takes images and the configuration names no other
    file for this.
    """
    names: dict[str, None] = {}
    for part in _objects(config):
        names |= {part[key]: None for key in _FILE_KEYS if part.get(key) and isinstance(part[key], str)}
    model = config.get("model")
    vision = model.get(_VISION) if isinstance(model, dict) else None
    if isinstance(vision, dict) and vision.get("filename") and "config_filename" not in vision:
        names[_PROCESSOR] = None
    return list(names)


def remedy(directory: Path, name: str) -> str:
    """Return what an operator can do if the file `name` of a model directory is missing or broken, such as "copy it
    from the original model", for error messages.
    """
    if name in (TOKENIZER, TOKENIZER_CONFIG, CHAT_TEMPLATE):
        return _FROM_THE_ORIGINAL
    if name != CONFIG:
        return _FROM_THE_BUILDER
    folders = [str(folder) for folder in islice(_nested_models(directory), _MAX_NAMED + 1)]
    if len(folders) > 1:
        more = ", and more" if len(folders) > _MAX_NAMED else ""
        return f"name one of the folders that have it: {', '.join(folders[:_MAX_NAMED])}{more}"
    return "name the folder that has it" + "".join(f": {folder}" for folder in folders)


def _nested_models(directory: Path) -> Iterator[Path]:
    """Yield the folders below `directory` that contain a model, for advice when an operator has named a folder above
    them. Repositories with several models, and caches of model hubs, have such folders.

    At most _MAX_SEARCHED folders are searched, without hidden ones, links, and folders more than _MAX_DEPTH levels
    deep.
    """
    for folder, folders, files in islice(os.walk(directory), _MAX_SEARCHED):
        depth = len(Path(folder).relative_to(directory).parts)
        folders[:] = sorted(name for name in folders if not name.startswith(".")) if depth < _MAX_DEPTH else []
        if depth and CONFIG in files:
            yield Path(folder)


def is_lfs_pointer(path: Path) -> bool:
    """Whether a file is only the small pointer that Git leaves in place of a large file when Git LFS is not installed.
    Raises OSError if the file cannot be read.
    """
    with path.open("rb") as file:
        return file.read(len(_LFS_POINTER)) == _LFS_POINTER


def _check_present(directory: Path, name: str, lack: str) -> None:
    path = directory / name
    try:
        if not path.is_file():
            raise ModelDirectoryError(
                f"model directory {directory} is incomplete: {name}{lack}; {remedy(directory, name)}"
            )
        is_pointer = is_lfs_pointer(path)
    except OSError as error:
        raise ModelDirectoryError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from None
    if is_pointer:
        raise ModelDirectoryError(f"{path} is Git's pointer to the file, not the file itself; run git lfs pull there")


def _check_names(directory: Path, config: Any) -> None:
    """Check that a genai_config.json with the contents `config` names nothing harmful: its files must lie in the model
    directory, no library may be loaded, and the prefix for files with profiles must not be a path.

    Raises ModelDirectoryError.
    """
    for key, value in (pair for part in _objects(config) for pair in part.items()):
        if isinstance(value, str) and _FILE.search(key):
            _check_inside(directory, value, CONFIG)
        if _CODE in key and value:
            raise ModelDirectoryError(f"{directory / CONFIG} names a library to load: {key}")
        if key == _PROFILING and value and not (isinstance(value, str) and PREFIX.fullmatch(value)):
            raise ModelDirectoryError(
                f"{directory / CONFIG} has {key} {quoted(value)}: it must be a name, not a path, of at most 64 "
                "letters, digits, dots, dashes and underscores; GENAI_PROFILE_DIR sets the folder"
            )


def _objects(config: Any) -> Iterator[dict[str, Any]]:
    """Yield all JSON objects in a configuration, at any depth, beginning with the configuration itself."""
    waiting = [config]
    while waiting:
        value = waiting.pop(0)
        if isinstance(value, dict):
            yield value
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value


def _check_inside(directory: Path, name: str, named_in: str) -> None:
    """Check that a file name leads to a file inside the model directory, also if it is a link. Links within Hugging
    Face's cache are allowed. The file need not exist. Raises ModelDirectoryError.

    `named_in` is the file in which the name was found, for the message.
    """
    if PurePosixPath(name).is_absolute() or PureWindowsPath(name).drive or ".." in re.split(r"[/\\]", name):
        raise ModelDirectoryError(f"{directory / named_in} names a file outside the model directory: {quoted(name)}")
    try:
        target = (directory / name).resolve()
    except (OSError, ValueError):  # for instance, it has a null byte
        raise ModelDirectoryError(f"{directory / named_in} names an impossible file: {quoted(name)}") from None
    # In Hugging Face's cache, snapshots contain links to files in a folder next to them.
    caches = [parent.parent / "blobs" for parent in directory.absolute().parents if parent.name == "snapshots"]
    if not any(target.is_relative_to(root.resolve()) for root in (directory, *caches)):
        raise ModelDirectoryError(f"{directory / name} is a link out of the model directory, to {target}")


def read_config(directory: Path) -> dict[str, Any]:
    """Return the contents of the file genai_config.json in a model directory. Raises ModelDirectoryError if it is
    missing or is not a JSON object.
    """
    return _read_json(directory / CONFIG)


def session_profile(directory: Path) -> str:
    """Return the beginning of the file names for profiles, if the model's genai_config.json asks ONNX Runtime to
    profile the whole session of the model, from loading to closing (`enable_profiling`); otherwise "".

    Raises ModelDirectoryError if the file cannot be read.
    """
    if task_of(directory).pools:
        return ""
    options = read_config(directory)["model"]["decoder"].get("session_options") or {}
    return str(options.get(_PROFILING) or "")


def model_info(config: dict[str, Any]) -> ModelInfo:
    """Return the description of a model from `config`, the contents of its genai_config.json: the sizes, the
    end-of-sequence tokens, and the default sampling parameters, which are in the section `search`.

    If this section has `do_sample` false or `top_k` 1, greedy decoding is the default; a request with a temperature is
    sampled nevertheless. Raises KeyError, TypeError or ValueError if the file lacks what onnxruntime-genai requires.
    """
    model, search = config["model"], config.get("search", {})
    eos = model["eos_token_id"]
    sizes = {name: int(model[name]) for name in ("context_length", "vocab_size")}
    wrong = [name for name, size in sizes.items() if not 0 < size < _MAX_TOKENS]
    # Some files name tokens for which the model has no logits, and which it never generates.
    named = [int(token) for token in (eos if isinstance(eos, list) else [eos])]
    eos_token_ids = [token for token in named if 0 <= token < sizes["vocab_size"]]
    if not eos_token_ids or any(abs(token) >= _MAX_TOKENS for token in named):
        wrong.append("eos_token_id")
    if wrong:
        raise ValueError(repr(wrong[0]))
    top_k = int(search.get("top_k", 0))
    greedy = top_k == 1 or not search.get("do_sample", False)
    return ModelInfo(
        context_length=sizes["context_length"],
        vocab_size=sizes["vocab_size"],
        eos_token_ids=eos_token_ids,
        defaults=Sampling(
            temperature=0.0 if greedy else float(search.get("temperature", 1.0)),
            top_k=0 if top_k == 1 else top_k,
            top_p=float(search.get("top_p", 1.0)),
            min_p=float(search.get("min_p", 0.0)),
            repetition_penalty=float(search.get("repetition_penalty", 1.0)),
        ),
    )


def weight_bytes(directory: Path) -> int:
    """Return the size in bytes of all graphs and weight files in a model directory, for the report of `genai-server
    doctor`. Raises ModelDirectoryError or OSError.
    """
    names = [graph_of(directory)] if task_of(directory).pools else named_files(read_config(directory))
    graphs = [directory / name for name in names]
    weights = {graph.parent / name for graph in graphs for name in external_files(graph)}
    return sum(file.stat().st_size for file in (*graphs, *weights))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_object_without_duplicates)
    except FileNotFoundError:
        raise ModelDirectoryError(
            f"model directory {path.parent} is incomplete: {path.name} is missing; {remedy(path.parent, path.name)}"
        ) from None
    except (OSError, ValueError) as error:
        raise ModelDirectoryError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    except RecursionError:
        raise ModelDirectoryError(f"{path} cannot be read: it is nested too deep") from None
    if not isinstance(value, dict):
        raise ModelDirectoryError(f"{path} cannot be read: it is not a JSON object")
    return value


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the key-value pairs of a JSON object as a dictionary, as a hook for Python's JSON parser. Raises
    ValueError if a key is repeated.

    Python would use the last value of a repeated key, and onnxruntime-genai would apply all of them.
    """
    unique = dict(pairs)
    if len(unique) < len(pairs):
        names = [name for name, _ in pairs]
        double = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"it has {quoted(double)} twice in one object")
    return unique


def check_draft_model(model: Path, draft: Path) -> ModelInfo:
    """Check that the model in the directory `draft` can draft tokens for the model in the directory `model`, which was
    checked before: its files must be complete, and both must have the same tokens. Returns the draft model's
    description.

    If the draft model drafts all tokens in one pass, its mask token must be in its vocabulary. The vocabularies may be
    padded to different sizes, and the tokenizers may split text by different rules, because a draft model reads and
    writes token ids only. Raises ConfigurationError, whose message begins with the path `draft` and says what differs.
    """
    try:
        info = check_model_directory(draft)
        if task_of(draft) is not Task.GENERATE:
            raise ConfigurationError(f"{draft}: it does not generate text")
        (model_tokens, model_special), (draft_tokens, draft_special) = _tokens(model), _tokens(draft)
        read_mask_token(draft, info.vocab_size)
    except ModelDirectoryError as error:
        raise ConfigurationError(f"{draft}: {error.message}") from None
    fault = _first_difference("special token", model_special, draft_special) or _first_difference(
        "token", model_tokens, draft_tokens
    )
    if fault:
        raise ConfigurationError(f"{draft}: it must have the tokenizer of {model}: {fault}")
    if info.vocab_size < len(model_tokens):
        raise ConfigurationError(
            f"{draft}: its vocabulary has {info.vocab_size} tokens (vocab_size), the tokenizer has {len(model_tokens)}"
        )
    return info


def _first_difference(kind: str, expected: dict[int, str], actual: dict[int, str]) -> str:
    """Return a message about the lowest token id at which two vocabularies differ; "" if they are equal.

    `expected` and `actual` have the texts of tokens by id, and `kind` is the noun for a token in the message, such as
    "special token".
    """
    if expected == actual:
        return ""
    token = min(id for id in expected.keys() | actual.keys() if expected.get(id) != actual.get(id))
    actual_text, expected_text = (
        quoted(tokens[token]) if token in tokens else "missing" for tokens in (actual, expected)
    )
    return (
        f"{kind} {token} is {actual_text} and not {expected_text}; it has {len(actual)} {kind}s and not {len(expected)}"
    )


def _tokens(directory: Path) -> tuple[dict[int, str], dict[int, str]]:
    """Return the texts of all tokens by id, and the texts of the special tokens by id, from the tokenizer in a model
    directory.

    Raises ModelDirectoryError if the tokenizer cannot be read.
    """
    tokenizer = read_object(directory / TOKENIZER)
    try:
        vocabulary = tokenizer["model"]["vocab"]
        # Unigram models have a list of texts with their scores.
        pairs = (
            enumerate(entry[0] for entry in vocabulary)
            if isinstance(vocabulary, list)
            else ((int(id), text) for text, id in vocabulary.items())
        )
        added = {int(token["id"]): str(token["content"]) for token in tokenizer.get("added_tokens", ())}
        return {id: str(text) for id, text in pairs} | added, {
            int(token["id"]): str(token["content"]) for token in tokenizer.get("added_tokens", ()) if token["special"]
        }
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ModelDirectoryError(f"{directory / TOKENIZER} cannot be read: it has a wrong {error}") from None
