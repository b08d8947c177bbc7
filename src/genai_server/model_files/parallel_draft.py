"""The mask token of draft models that draft in parallel (PARD), read from the config.json of their checkpoints."""

from pathlib import Path

from genai_server.errors import ModelDirectoryError, quoted
from genai_server.model_files.json_file import read_object
from genai_server.model_files.pooling_model import CONFIG

# The key of config.json whose value is the id of the mask token.
MASK_TOKEN = "pard_token"


def read_mask_token(directory: Path, vocab_size: int) -> int | None:
    """Return the id of the mask token of the draft model in a directory; None if it does not draft in parallel.

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
