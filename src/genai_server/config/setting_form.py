"""How users write settings: the environment variable and command-line option of each (`environment_variable`,
`option`), sizes with units such as 4GiB, and comma-separated lists (`pairs`, `entries_of_models`, …).
"""

import re
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ByteSize, ConfigDict, Field, TypeAdapter, ValidationInfo, field_validator

from genai_server.errors import quoted

# Fields whose environment variables other servers read, too; those of all others begin with GENAI_. The variables with
# GENAI_ take precedence over these, because other programs export them: conda sets HOST to the name of a platform.
_UNPREFIXED_VARIABLES = ("host", "port", "workers", "reload")
# Former names of fields, which each source may have in place of the present ones.
FORMER_NAMES = {
    "max_media": "max_images",
    "max_media_bytes": "max_image_bytes",
    "max_media_tokens": "max_image_tokens",
    "max_media_body_bytes": "max_image_body_bytes",
    "media_timeout": "image_timeout",
}

# What lets the server choose a number.
AUTO: Literal["auto"] = "auto"

Positive = Annotated[int, Field(gt=0)]
NotNegative = Annotated[int, Field(ge=0)]


def environment_variable(name: str) -> str:
    """Return the environment variable of the setting `name` (a field of `Settings`), as documentation and messages name
    it.
    """
    return name.upper() if name in _UNPREFIXED_VARIABLES else f"GENAI_{name.upper()}"


def environment_variables(name: str) -> tuple[str, ...]:
    """Return all environment variables by which the setting `name` (a field of `Settings`) can be set, the one that
    takes precedence first.
    """
    return (f"GENAI_{name.upper()}", name.upper()) if name in _UNPREFIXED_VARIABLES else (environment_variable(name),)


def option(name: str) -> str:
    """Return the command-line option of the setting `name` (a field of `Settings`), such as `--max-length` for
    `max_length`.
    """
    return "--" + name.replace("_", "-")


# A size with a unit, such as 4GiB or 500 MB.
_SIZE = re.compile(r"\d+(\.\d+)?\s*[KMGT]i?B", re.IGNORECASE)
_SIZES = TypeAdapter(ByteSize)


class SettingsForm(BaseModel):
    """The base class of `Settings` and its parts, with what pydantic has to know about all settings: their environment
    variables, that unknown ones are an error, and that sizes may have units.
    """

    model_config = ConfigDict(
        frozen=True,
        # The classes below Settings validate nothing.
        defer_build=True,
        populate_by_name=True,
        extra="forbid",
        alias_generator=environment_variable,
        use_attribute_docstrings=True,
    )

    @field_validator("*", mode="before")
    @classmethod
    def _in_bytes(cls, value: object, info: ValidationInfo) -> object:
        """Convert the value of a setting whose name ends in `_bytes` to the number of bytes, as text, if it has a unit,
        such as `4GiB`. Other values are returned unchanged.
        """
        is_size = (info.field_name or "").endswith("_bytes") and isinstance(value, str) and _SIZE.fullmatch(value)
        return str(int(_SIZES.validate_python(value))) if is_size else value


def listed(text: str) -> list[str]:
    """Return the entries of a comma-separated list, without blanks around them."""
    return [entry.strip() for entry in text.split(",")]


def pairs(text: str) -> list[tuple[str, str]]:
    """Return the entries of a list such as `a=x,b=y` as pairs of name and value. The value of an entry without `=` is
    "". An empty text has no entries.
    """
    return [(name, value) for name, _, value in (entry.partition("=") for entry in listed(text))] if text else []


def adapter_entries(text: str, first: str) -> list[tuple[str, str, str]]:
    """Parse a list of LoRA adapters such as `law=./law.onnx_adapter,big:law=/srv/law.onnx_adapter`. Returns the model,
    the adapter's name and its file for each entry.

    Entries that name no model are for the model `first`.
    """
    entries = [(*id.rpartition(":"), path) for id, path in pairs(text)]
    return [(model or first, name, path) for model, _, name, path in entries]


def entries_of_models(text: str, first: str) -> list[tuple[str, str]]:
    """Parse a list of values for models such as `x,big=y`. Returns the model and the value of each entry. Entries that
    name no model are for the model `first`.
    """
    entries = [entry.partition("=") for entry in listed(text)] if text else []
    return [(model or first, value) if equals else (first, model) for model, equals, value in entries]


def check_one_per_model(text: str, models: Sequence[str], example: str, doubled: str) -> str:
    """Check a list of values for models such as `x,big=y`, with at most one value for each model, and return it
    unchanged. An entry that names no model is for the first of `models`.

    Raises ValueError for a model that is not in `models`, for a missing value, and for a model with two entries. The
    message about a missing value contains `example`, a valid entry; the message about two entries is `doubled`.
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
