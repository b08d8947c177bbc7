"""Reads the JSON files of model directories, such as config.json."""

import json
from pathlib import Path
from typing import Any

from genai_server.errors import ModelDirectoryError


def read_value(path: Path, otherwise: Any) -> Any:
    """Return the value in a JSON file; `otherwise` if there is no file.

    Raises ModelDirectoryError, which names the file, if the file cannot be read or is not JSON.
    """
    try:
        if not path.is_file():  # reading from a pipe would block
            return otherwise
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelDirectoryError(f"{path} cannot be read: {error}") from None


def read_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; an empty one if there is no file.

    Raises ModelDirectoryError, which names the file, if the file cannot be read or has no JSON object.
    """
    value = read_value(path, {})
    if not isinstance(value, dict):
        raise ModelDirectoryError(f"{path} cannot be read: it is not a JSON object")
    return value
