"""Reads from a model's directory what the model does (`task_of`), and the description of an embedding or reranking
model (`read_pooling_model`), which returns a vector or a score for a text instead of generating text.

The files are those of sentence-transformers (modules.json, the configurations of its modules,
config_sentence_transformers.json and sentence_bert_config.json) and config.json of transformers.
"""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from msgspec import Struct

from genai_server.errors import ModelDirectoryError, quoted
from genai_server.model_files.config_files import CONFIG, GENAI_CONFIG, TOKENIZER_CONFIG, read_object, read_value
from genai_server.model_files.speech_and_vision import ARCHITECTURE as SPEECH_ARCHITECTURE
from genai_server.model_files.speech_and_vision import transcribes

MODULES = "modules.json"


PROMPTS = "config_sentence_transformers.json"
LENGTHS = "sentence_bert_config.json"
# What sentence-transformers reads in addition to the folders that modules.json names.
MODULE_FILES = (MODULES, PROMPTS, LENGTHS)
# What a directory may contain in addition to these folders.
POOLING_FILES = (GENAI_CONFIG, CONFIG, *MODULE_FILES)
# Paths of a graph in a repository, in order of preference.
_GRAPHS = ("model.onnx", "onnx/model.onnx")
# The flags of older configurations, in the order in which several vectors are joined.
_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
MODES = tuple(_MODES.values())
# Kinds of models whose positions begin after the padding token's id, so that they take fewer tokens than positions.
_SHIFTED = {"camembert", "data2vec-text", "longformer", "mpnet", "roberta", "xlm-roberta", "xlm-roberta-xl"}
_MAX_TOKENS = 2**31
_CLASSIFIER = "ForSequenceClassification"
_DECODERS = ("ForCausalLM", "ForConditionalGeneration")


class Task(StrEnum):
    """The task of a model: to generate text, to embed or rerank texts, or to transcribe speech. The values are names
    that llama.cpp, Ollama and Cohere use.
    """

    GENERATE = "completion"
    EMBED = "embedding"
    RERANK = "rerank"
    TRANSCRIBE = "transcription"

    @property
    def pools(self) -> bool:
        """Whether a model with this task reads complete texts and returns a vector or a score for each."""
        return self in (Task.EMBED, Task.RERANK)

    @property
    def why_no_drafts(self) -> str:
        """The reason why a model with this task cannot use a draft model (speculative decoding), as a phrase for
        messages; "" if it can.
        """
        return "" if self is Task.GENERATE else f"the task of the model is {self}, and only {Task.GENERATE} has drafts"


# The API's paths for models that do not chat.
ENDPOINTS = {
    Task.EMBED: ("/v1/embeddings",),
    Task.RERANK: ("/v1/rerank", "/v1/score"),
    Task.TRANSCRIBE: ("/v1/audio/transcriptions", "/v1/audio/translations"),
}


class PoolingModel(Struct, frozen=True):
    """Description of an embedding or reranking model, read from its directory: its graph, the maximum length of a text,
    and how vectors or scores are computed. Engines and API processes use it.
    """

    task: Task
    # The ONNX file, relative to the directory.
    graph: str
    # Maximum number of tokens of a text or, for reranking, of a pair of texts.
    max_tokens: int
    vocab_size: int
    # The token with which shorter texts of a batch are padded. Some graphs recognize it by its id.
    pad_token: int = 0
    # Whether the second text of a pair has another token type, if the tokenizer has token types.
    has_types: bool = True
    # Head size of a decoder's attention, which is not in every graph.
    head_size: int = 0
    # Attention heads; 0 if unknown.
    num_heads: int = 0
    # Pooling modes by which the vectors of a text's tokens are combined to one vector; the results of several modes are
    # concatenated. Empty if the graph does this.
    modes: tuple[str, ...] = ()
    # Whether the tokens of a prompt before the text are pooled, too.
    includes_prompt: bool = True
    # Whether vectors have length 1.
    normalizes: bool = False
    # Number of dimensions of a vector.
    dimensions: int = 0
    # Smaller numbers of dimensions for which the model was trained; with `takes_any_length`, all smaller numbers.
    shorter: tuple[int, ...] = ()
    takes_any_length: bool = False
    # Prompts to put before a text, by name, and the name of the one that is used if a request names none.
    prompts: Mapping[str, str] = {}
    default_prompt: str | None = None
    # For a decoder that reranks: the score is the logit of the first token minus the logit of the second one.
    true_token: int | None = None
    false_token: int | None = None
    # Whether a score is the sigmoid of the logit, or the logit itself.
    has_sigmoid: bool = True

    def summary(self) -> str:
        """Return a phrase for the operator: what the model returns, and the maximum length of texts in tokens."""
        limit = f"at most {self.max_tokens} tokens"
        if self.task is Task.RERANK:
            return f"scores {'from 0 to 1' if self.has_sigmoid else 'without bounds'}, pairs of {limit}"
        properties = [f"pooling {' and '.join(self.modes)}" if self.modes else "pooled by the graph"]
        properties += ["normalized"] if self.normalizes else []
        return f"vectors of {self.dimensions} numbers ({', '.join(properties)}), texts of {limit}"

    def lengths(self) -> str:
        """Return a phrase that lists the vector lengths (numbers of dimensions) that a request may ask for."""
        if self.takes_any_length:
            return f"from 1 to {self.dimensions}"
        return ", ".join(map(str, sorted({*self.shorter, self.dimensions})))

    def takes_length(self, dimensions: int) -> bool:
        """Return whether a request may ask for vectors with this number of dimensions: the model's own number, or a
        smaller one for which it was trained.
        """
        return dimensions in (self.dimensions, *self.shorter) or (
            self.takes_any_length and 0 < dimensions < self.dimensions
        )


def task_of(directory: Path) -> Task:
    """Return the task of the model in a directory, such as generating or embedding; GENERATE if the directory's files
    cannot be read.
    """
    try:
        return _task(directory)
    except ModelDirectoryError:
        return Task.GENERATE


def read_pooling_model(directory: Path) -> PoolingModel | None:
    """Return the description of the embedding or reranking model in a directory; None if the model there has another
    task, such as generating text.

    Raises ModelDirectoryError, which names the file or directory, if a configuration is not valid.
    """
    task = _task(directory)
    if not task.pools:
        return None
    try:
        return _read(directory, task)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise ModelDirectoryError(f"a configuration in {directory} lacks or has a wrong value for {error}") from None


def module_configs(directory: Path) -> list[str]:
    """Return the paths of the configuration files of those sentence-transformers modules that pool or score, relative
    to the directory. The file modules.json lists the modules.

    Raises ModelDirectoryError if modules.json is not valid.
    """
    return [
        f"{folder}/{CONFIG}" for kind, folder in _modules(directory) if folder and kind in ("Pooling", "LogitScore")
    ]


def is_decoder(directory: Path) -> bool:
    """Return whether the model in a directory in Hugging Face's format is a decoder (a model of the kind that generates
    text), according to config.json.

    Raises ModelDirectoryError if that file is not valid.
    """
    return _architecture(read_object(directory / CONFIG)).endswith(_DECODERS)


def graph_of(directory: Path) -> str:
    """Return the path of the ONNX file of an embedding or reranking model, relative to its directory.

    Raises ModelDirectoryError if the directory has no such file, or several.
    """
    if (directory / GENAI_CONFIG).is_file():
        return str(read_object(directory / GENAI_CONFIG)["model"]["decoder"]["filename"])
    for name in _GRAPHS:
        if (directory / name).is_file():
            return name
    graphs = sorted(
        path.relative_to(directory).as_posix() for path in (*directory.glob("*.onnx"), *directory.glob("onnx/*.onnx"))
    )
    if len(graphs) == 1:
        return graphs[0]
    if graphs:
        raise ModelDirectoryError(
            f"model directory {directory} has several graphs and no model.onnx: {', '.join(graphs)}; keep one of them"
        )
    raise ModelDirectoryError(
        f"model directory {directory} is incomplete: model.onnx is missing; fetch or build the directory again "
        "(genai-server pull, genai-server export)"
    )


def _task(directory: Path) -> Task:
    kinds = [kind for kind, _ in _modules(directory)]
    if "Pooling" in kinds or "Normalize" in kinds:
        return Task.EMBED
    if "LogitScore" in kinds:
        return Task.RERANK
    config = read_object(directory / CONFIG)
    if _architecture(config).endswith(_CLASSIFIER):
        return Task.RERANK
    if transcribes(directory) or _architecture(config) == SPEECH_ARCHITECTURE:
        return Task.TRANSCRIBE
    if (directory / GENAI_CONFIG).is_file() or not config or _architecture(config).endswith(_DECODERS):
        return Task.GENERATE
    return Task.EMBED


def _read(directory: Path, task: Task) -> PoolingModel:
    config, genai = read_object(directory / CONFIG), read_object(directory / GENAI_CONFIG)
    tokenizer, sentence_config = read_object(directory / TOKENIZER_CONFIG), read_object(directory / PROMPTS)
    pad_token = config.get("pad_token_id", genai.get("model", {}).get("pad_token_id"))
    pad_token = 0 if pad_token is None else int(pad_token)
    model = PoolingModel(
        task,
        graph_of(directory),
        max_tokens=_max_tokens(directory, config, genai, tokenizer, pad_token),
        vocab_size=int(config["vocab_size"] if "vocab_size" in config else genai["model"]["vocab_size"]),
        pad_token=pad_token,
        has_types="token_type_ids" in (tokenizer.get("model_input_names") or ["token_type_ids"]),
        head_size=_head_size(config, genai),
        num_heads=_num_heads(config, genai),
        **(
            _embedding(directory, config, sentence_config)
            if task is Task.EMBED
            else _reranker(directory, config, sentence_config)
        ),
    )
    if not 0 < model.max_tokens < _MAX_TOKENS or not 0 < model.vocab_size < _MAX_TOKENS:
        raise ValueError("max_seq_length or vocab_size")
    for name, token in (("true_token_id", model.true_token), ("false_token_id", model.false_token)):
        if token is not None and not 0 <= token < model.vocab_size:
            raise ValueError(f"{name} {token}: the vocabulary has {model.vocab_size} tokens")
    return model


def _embedding(directory: Path, config: Mapping[str, Any], sentence_config: Mapping[str, Any]) -> dict[str, Any]:
    modules = _modules(directory)
    pooling = next((read_object(directory / path / CONFIG) for kind, path in modules if kind == "Pooling"), {})
    modes = _pooling_modes(pooling) if pooling else ()
    width = pooling.get("embedding_dimension") or pooling.get("word_embedding_dimension") or config["hidden_size"]
    dimensions = int(width) * max(1, len(modes))
    for kind, path in modules:
        if kind not in ("Transformer", "Pooling", "Normalize"):
            # The graph must contain that module; without a mode, the graph's vector is used.
            modes, dimensions = (), int(read_object(directory / path / CONFIG).get("out_features", dimensions))
    prompts = {str(name): str(text) for name, text in (sentence_config.get("prompts") or {}).items()}
    default = sentence_config.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise ValueError(f"default_prompt_name {quoted(default)}")
    shorter = tuple(int(length) for length in config.get("matryoshka_dimensions") or ())
    return {
        "modes": modes,
        "includes_prompt": pooling.get("include_prompt", True) is not False,
        "normalizes": any(kind == "Normalize" for kind, _ in modules),
        "dimensions": dimensions,
        "shorter": tuple(length for length in shorter if 0 < length < dimensions),
        "takes_any_length": config.get("is_matryoshka") is True and not shorter,
        "prompts": prompts,
        "default_prompt": default,
    }


def _pooling_modes(pooling: Mapping[str, Any]) -> tuple[str, ...]:
    value = pooling.get("pooling_mode")
    modes = (value,) if isinstance(value, str) else tuple(value or ())
    modes = modes or tuple(mode for flag, mode in _MODES.items() if pooling.get(flag)) or ("mean",)
    if unknown := [mode for mode in modes if mode not in MODES]:
        raise ValueError(f"pooling_mode {quoted(unknown[0])}: it must be one of {', '.join(MODES)}")
    return modes


def _reranker(directory: Path, config: Mapping[str, Any], sentence_config: Mapping[str, Any]) -> dict[str, Any]:
    nested = config.get("sentence_transformers") or {}
    activation = (
        sentence_config.get("activation_fn")
        or nested.get("activation_fn")
        or config.get("sbert_ce_default_activation_function")
        or "Sigmoid"
    )
    kind = str(activation).rpartition(".")[2]
    if kind not in ("Sigmoid", "Identity"):
        raise ValueError(f"activation_fn {quoted(activation)}: it must be Sigmoid or Identity")
    fields: dict[str, Any] = {"has_sigmoid": kind == "Sigmoid"}
    for module, path in _modules(directory):
        if module == "LogitScore":
            tokens = read_object(directory / path / CONFIG)
            false_token = tokens.get("false_token_id")
            fields["true_token"] = int(tokens["true_token_id"])
            fields["false_token"] = None if false_token is None else int(false_token)
    if "true_token" not in fields:
        labels = config.get("num_labels") or len(config.get("id2label") or {}) or 2
        if labels != 1:
            raise ModelDirectoryError(
                f"{directory / CONFIG} describes a classifier with {labels} labels: a reranker has one (num_labels)"
            )
    return fields


def _max_tokens(
    directory: Path,
    config: Mapping[str, Any],
    genai: Mapping[str, Any],
    tokenizer: Mapping[str, Any],
    pad_token: int,
) -> int:
    positions = config.get("max_position_embeddings") or config.get("n_positions") or 0
    positions = positions or genai.get("model", {}).get("context_length", 0)
    if config.get("model_type") in _SHIFTED:
        positions -= pad_token + 1
    limits = [
        read_object(directory / LENGTHS).get("max_seq_length") or tokenizer.get("model_max_length"),
        positions if positions > 0 else None,
    ]
    # Tokenizers without a limit have one of 30 digits.
    return int(min((limit for limit in limits if limit is not None and limit < _MAX_TOKENS), default=512))


def _num_heads(config: Mapping[str, Any], genai: Mapping[str, Any]) -> int:
    decoder = genai.get("model", {}).get("decoder", {})
    return int(config.get("num_attention_heads") or decoder.get("num_attention_heads") or 0)


def _head_size(config: Mapping[str, Any], genai: Mapping[str, Any]) -> int:
    decoder = genai.get("model", {}).get("decoder", {})
    heads = int(config.get("num_attention_heads") or 0)
    size = decoder.get("head_size") or config.get("head_dim")
    return int(size or (int(config.get("hidden_size") or 0) // heads if heads else 0))


def _architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures")
    return str(names[0]) if isinstance(names, list) and names else ""


def _modules(directory: Path) -> list[tuple[str, str]]:
    """Return the kind and the folder of each module that sentence-transformers' file modules.json lists; empty if there
    is no such file.

    Raises ModelDirectoryError if the file is not valid.
    """
    path = directory / MODULES
    listed = read_value(path, [])
    if not isinstance(listed, list) or not all(isinstance(module, dict) for module in listed):
        raise ModelDirectoryError(f"{path} cannot be read: it is not a list of modules")
    result = []
    for module in listed:
        folder = str(module.get("path", ""))
        if folder.startswith("/") or ".." in folder or ":" in folder:
            raise ModelDirectoryError(f"{path} names a folder outside the model directory: {quoted(folder)}")
        result.append((str(module.get("type", "")).rpartition(".")[2], folder))
    return result
