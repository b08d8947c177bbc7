"""Reads the JSON files of model directories, such as genai_config.json and config.json (`read_value`, `read_object`),
and the mask token of draft models that draft several tokens in parallel (PARD).
"""

import json
from pathlib import Path
from typing import Any

from genai_server.errors import ModelDirectoryError, quoted

CONFIG = "config.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
GENAI_CONFIG = "genai_config.json"

# The key of config.json whose value is the id of the mask token.
MASK_TOKEN = "pard_token"


def read_value(path: Path, otherwise: Any) -> Any:
    """Return the value in the JSON file at `path`; `otherwise` if there is no file.

    Raises ModelDirectoryError, which names the file, if the file cannot be read or is not JSON.
    """
    try:
        if not path.is_file():  # reading from a pipe would block
            return otherwise
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelDirectoryError(f"{path} cannot be read: {error}") from None


def read_object(path: Path) -> dict[str, Any]:
    """Return the object in the JSON file at `path`; an empty one if there is no file.

    Raises ModelDirectoryError, which names the file, if the file cannot be read or does not contain a JSON object.
    """
    value = read_value(path, {})
    if not isinstance(value, dict):
        raise ModelDirectoryError(f"{path} cannot be read: it is not a JSON object")
    return value


def read_mask_token(directory: Path, vocab_size: int) -> int | None:
    """Return the id of the mask token of the draft model (speculative decoding) in a directory; None if the model does
    not draft several tokens in parallel (PARD).

    `vocab_size` is the number of tokens of the model's vocabulary. Raises ModelDirectoryError for a value that is not
    the id of one of these tokens.
    """
    config = read_object(directory / CONFIG)
    token = config.get(MASK_TOKEN)
    if token is None:
        return None
    if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < vocab_size:
        raise ModelDirectoryError(
            f"{directory / CONFIG}: {MASK_TOKEN} is the id of a token, an integer from 0 to {vocab_size - 1}; given "
            f"{quoted(token)}"
        )
    return token
