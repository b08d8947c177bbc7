"""Finds a model's chat templates where Hugging Face's libraries store them, or loads the template that a setting
names.
"""

from pathlib import Path
from typing import Any

from genai_server.errors import ChatTemplateError, ModelDirectoryError
from genai_server.model_files.config_files import read_object
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
    """Return the chat templates of a model keyed by name, including "default"; empty if there is no default template.

    `given` is a file, or one of NAMES, and replaces the model's own templates. The model's own templates are
    `chat_template.jinja`, and `NAME.jinja` in the folder `additional_chat_templates`. Without any of these files, they
    are the value of `chat_template` in tokenizer_config.json: a string, or a list of objects with `name` and
    `template`. Raises ModelDirectoryError if a template of the model is not valid, and ChatTemplateError if `given`
    cannot be used.
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
    """Return the texts of a model's special tokens, keyed by role, such as `eos_token`.

    Raises ModelDirectoryError if tokenizer_config.json cannot be read.
    """
    tokens = {}
    for name, value in read_object(model_dir / _TOKENIZER_CONFIG).items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            tokens[name] = text
    return tokens


def load_rerank_template(model_dir: Path, *, max_characters: int = MAX_CHARACTERS) -> dict[str, ChatTemplate]:
    """Return the template of a reranker that is a decoder, as a map with the key "default". Rendered prompts may have
    at most `max_characters`.

    It is the model's own template if that supports queries and documents, else the template of Qwen3-Reranker. Raises
    ModelDirectoryError if the model's template is not valid.
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
