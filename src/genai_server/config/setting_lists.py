"""Reads settings that are comma-separated lists."""

from collections.abc import Sequence

from genai_server.errors import quoted


def listed(text: str) -> list[str]:
    """The entries of a comma-separated list, without surrounding blanks."""
    return [entry.strip() for entry in text.split(",")]


def pairs(text: str) -> list[tuple[str, str]]:
    """The entries of a list such as `a=x,b=y` as pairs of name and value. The value of an entry without `=` is ""."""
    return [(name, value) for name, _, value in (entry.partition("=") for entry in listed(text))] if text else []


def adapter_entries(text: str, first: str) -> list[tuple[str, str, str]]:
    """Model, adapter name and file for each entry of a list such as
    `law=./law.onnx_adapter,big:law=/srv/law.onnx_adapter`.

    Entries that name no model are for the model `first`.
    """
    entries = [(*id.rpartition(":"), path) for id, path in pairs(text)]
    return [(model or first, name, path) for model, _, name, path in entries]


def entries_of_models(text: str, first: str) -> list[tuple[str, str]]:
    """Model and value of each entry of a list such as `x,big=y`. Entries that name no model are for the model
    `first`.
    """
    entries = [entry.partition("=") for entry in listed(text)] if text else []
    return [(model or first, value) if equals else (first, model) for model, equals, value in entries]


def one_for_each_model(text: str, models: Sequence[str], example: str, doubled: str) -> str:
    """Check a list such as `x,big=y`, which has at most one value for each model, and return it unchanged.

    Raises ValueError for a model that is not in `models`, for a missing value, and for a model with two entries;
    `example` and `doubled` are parts of the messages.
    """
    entries = entries_of_models(text, models[0])
    for entry, (model, value) in zip(listed(text), entries, strict=False):
        if model not in models:
            raise ValueError(f"{quoted(entry)} is for a model that is not served")
        if not value:
            raise ValueError(f"{quoted(entry)} is not {example}")
    require_distinct([model for model, _ in entries], doubled)
    return text


def require_distinct(names: Sequence[object], message: str) -> None:
    if len(set(names)) < len(names):
        raise ValueError(message)
