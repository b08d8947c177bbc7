"""Finds a model's chat templates where Hugging Face's libraries store them, or uses a given one instead."""

from pathlib import Path
from typing import Any

from genai_server.errors import ChatTemplateError, ModelDirectoryError
from genai_server.model_files.json_file import read_object
from genai_server.text.prompts.chat_template import MAX_CHARACTERS, ChatTemplate

DEFAULT = "default"
_FILE = "chat_template.jinja"
_MORE_FILES = "additional_chat_templates"
_TOKENIZER_CONFIG = "tokenizer_config.json"
# Templates included in the package, for models without one.
_KNOWN = {path.stem: path for path in sorted(Path(__file__).with_name("chat_templates").glob("*.jinja"))}
NAMES = tuple(_KNOWN)
_RERANK = Path(__file__).with_name("rerank_templates") / "qwen3-reranker.jinja"


def load_chat_templates(
    model_dir: Path, given: str = "", *, max_characters: int = MAX_CHARACTERS
) -> dict[str, ChatTemplate]:
    """The chat templates of a model keyed by name, including "default"; empty without a default template.

    `given` is a file, or one of NAMES, in place of the model's own. These are `chat_template.jinja`, and `NAME.jinja`
    in `additional_chat_templates`; without any of these, `chat_template` in tokenizer_config.json, a text or a list of
    objects with `name` and `template`. Raises ModelDirectoryError if one of them is not valid, and ChatTemplateError
    if `given` cannot be used.
    """
    special_tokens = load_special_tokens(model_dir)
    if given:
        try:
            return {DEFAULT: ChatTemplate(_given(given), special_tokens, max_characters=max_characters)}
        except ModelDirectoryError as error:
            raise ChatTemplateError(f"{given}: {error.message}") from None
    sources = _from_files(model_dir) or _from_config(model_dir)
    if DEFAULT not in sources:
        return {}
    return {
        name: ChatTemplate(source, special_tokens, max_characters=max_characters) for name, source in sources.items()
    }


def load_special_tokens(model_dir: Path) -> dict[str, str]:
    """The texts of a model's special tokens, keyed by role, such as `eos_token`. Raises ModelDirectoryError."""
    tokens = {}
    for name, value in read_object(model_dir / _TOKENIZER_CONFIG).items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            tokens[name] = text
    return tokens


def load_rerank_template(model_dir: Path, *, max_characters: int = MAX_CHARACTERS) -> dict[str, ChatTemplate]:
    """The template of a reranking decoder: its own if it supports queries and documents, else Qwen3-Reranker's.

    Raises ModelDirectoryError.
    """
    own = load_chat_templates(model_dir, max_characters=max_characters)
    if DEFAULT in own and all(role in own[DEFAULT].source for role in ("query", "document")):
        return own
    return {DEFAULT: ChatTemplate(_read(_RERANK), max_characters=max_characters)}


def _given(name: str) -> str:
    path = _KNOWN.get(name, Path(name))
    if not path.is_file():
        raise ChatTemplateError(
            f"{name}: no such file, and no chat template with this name; known names: {', '.join(NAMES)}"
        )
    return _read(path)


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


def _from_config(model_dir: Path) -> dict[str, str]:
    match read_object(model_dir / _TOKENIZER_CONFIG).get("chat_template"):
        case None | "":
            return {}
        case str(source):
            return {DEFAULT: source}
        case [*several] if all(_is_named(one) for one in several):
            return {one["name"]: one["template"] for one in several}
    raise ModelDirectoryError(
        f"chat_template in {model_dir / _TOKENIZER_CONFIG} must be a text, or a list of objects with name and template"
    )


def _is_named(one: Any) -> bool:
    return isinstance(one, dict) and isinstance(one.get("name"), str) and isinstance(one.get("template"), str)
