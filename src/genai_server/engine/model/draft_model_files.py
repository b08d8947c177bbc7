"""Checks whether a model can draft tokens for another one, for speculative decoding: both must have the same tokens."""

from pathlib import Path

from genai_server.engine.model.files import TOKENIZER, check_model_directory
from genai_server.errors import ConfigurationError, ModelDirectoryError, quoted
from genai_server.messages.generation_request import ModelInfo
from genai_server.model_files.json_file import read_object
from genai_server.model_files.pooling_model import Task, task_of


def check_draft_model(model: Path, draft: Path) -> ModelInfo:
    """Check the files of a draft model, and that it has the same tokens as another, checked model.

    Returns the draft model's data. The models may be padded to different vocabulary sizes, and their texts may be split
    by different rules, because a draft model reads and writes token ids only. Raises ConfigurationError, whose message
    begins with the path `draft` and says what differs.
    """
    try:
        info = check_model_directory(draft)
        if task_of(draft) is not Task.GENERATE:
            raise ConfigurationError(f"{draft}: it does not generate text")
        (own, own_special), (other, special) = _tokens(model), _tokens(draft)
    except ModelDirectoryError as error:
        raise ConfigurationError(f"{draft}: {error.message}") from None
    fault = _first_difference("special token", own_special, special) or _first_difference("token", own, other)
    if fault:
        raise ConfigurationError(f"{draft}: it must have the tokenizer of {model}: {fault}")
    if info.vocab_size < len(own):
        raise ConfigurationError(
            f"{draft}: its vocabulary has {info.vocab_size} tokens (vocab_size), the tokenizer has {len(own)}"
        )
    return info


def _first_difference(kind: str, wanted: dict[int, str], found: dict[int, str]) -> str:
    """Description of the first token of a kind that differs between two vocabularies, by id; "" if none differs."""
    if wanted == found:
        return ""
    token = min(id for id in wanted.keys() | found.keys() if wanted.get(id) != found.get(id))
    here, there = (quoted(tokens[token]) if token in tokens else "missing" for tokens in (found, wanted))
    return f"{kind} {token} is {here} and not {there}; it has {len(found)} {kind}s and not {len(wanted)}"


def _tokens(directory: Path) -> tuple[dict[int, str], dict[int, str]]:
    """All tokens, and the special tokens, of a directory's tokenizer by id. Raises ModelDirectoryError."""
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
