"""Reads JSON files of model directories."""

import json
from pathlib import Path
from typing import Any

from genai_server.errors import ModelDirectoryError


def read_value(path: Path, otherwise: Any) -> Any:
    """Return the value in a JSON file; `otherwise` if there is no file.

    Raises ModelDirectoryError, which names the file.
    """
    try:
        if not path.is_file():  # reading from a pipe would block
            return otherwise
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelDirectoryError(f"{path} cannot be read: {error}") from None


def read_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; empty if there is no file. Raises ModelDirectoryError, which names the
    file.
    """
    value = read_value(path, {})
    if not isinstance(value, dict):
        raise ModelDirectoryError(f"{path} cannot be read: it is not a JSON object")
    return value
