"""Finds the chat templates of a model directory where Hugging Face's libraries put them."""

import json
from pathlib import Path
from typing import Any

from genai_server.errors import ModelDirectoryError
from genai_server.text.chat_template import MAX_CHARACTERS, ChatTemplate

DEFAULT = "default"
_FILE = "chat_template.jinja"
_MORE_FILES = "additional_chat_templates"
_TOKENIZER_CONFIG = "tokenizer_config.json"


def load_chat_templates(model_dir: Path, *, max_characters: int = MAX_CHARACTERS) -> dict[str, ChatTemplate]:
    """The templates of a model directory by their names, one of which is "default".

    That is `chat_template.jinja`, and `NAME.jinja` in `additional_chat_templates`; without any of these,
    `chat_template` in tokenizer_config.json, a text or a list of objects with `name` and `template`. Raises
    ModelDirectoryError if there is no default one or one is not valid.
    """
    config = json.loads((model_dir / _TOKENIZER_CONFIG).read_text(encoding="utf-8"))
    sources = _from_files(model_dir) or _from_config(model_dir, config.get("chat_template"))
    if DEFAULT not in sources:
        raise ModelDirectoryError(f"model directory {model_dir} has no chat template")
    special_tokens = _special_tokens(config)
    return {
        name: ChatTemplate(source, special_tokens, max_characters=max_characters) for name, source in sources.items()
    }


def _from_files(model_dir: Path) -> dict[str, str]:
    files = {path.stem: path for path in sorted((model_dir / _MORE_FILES).glob("*.jinja"))}
    if (model_dir / _FILE).is_file():
        files[DEFAULT] = model_dir / _FILE
    return {name: _read(path) for name, path in files.items()}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ModelDirectoryError(f"{path} cannot be read: {error}") from None


def _from_config(model_dir: Path, value: Any) -> dict[str, str]:
    match value:
        case None | "":
            return {}
        case str():
            return {DEFAULT: value}
        case [*several] if all(_is_named(one) for one in several):
            return {one["name"]: one["template"] for one in several}
    raise ModelDirectoryError(
        f"chat_template in {model_dir / _TOKENIZER_CONFIG} must be a text, or a list of objects with name and template"
    )


def _is_named(one: Any) -> bool:
    return isinstance(one, dict) and isinstance(one.get("name"), str) and isinstance(one.get("template"), str)


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """`bos_token` and its like, each given as a text or as an object with its `content`."""
    tokens = {}
    for name, value in config.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            tokens[name] = text
    return tokens
