"""The base of the settings' classes: the form of sizes, and the names of environment variables and command-line
options.
"""

import re
from typing import Annotated, Literal

from pydantic import BaseModel, ByteSize, ConfigDict, Field, TypeAdapter, ValidationInfo, field_validator

# Fields whose environment variables other servers read, too; those of all others begin with GENAI_. The variables with
# GENAI_ take precedence over these, because other programs export them: conda sets HOST to the name of a platform.
_UNPREFIXED = ("host", "port", "workers", "reload")
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
    """The environment variable of a field of `Settings`, as documentation and messages name it."""
    return name.upper() if name in _UNPREFIXED else f"GENAI_{name.upper()}"


def environment_variables(name: str) -> tuple[str, ...]:
    """All environment variables of a field of `Settings`, the one that takes precedence first."""
    return (f"GENAI_{name.upper()}", name.upper()) if name in _UNPREFIXED else (environment_variable(name),)


def option(name: str) -> str:
    """The command-line option of a field of `Settings`."""
    return "--" + name.replace("_", "-")


# A size with a unit, such as 4GiB or 500 MB.
_SIZE = re.compile(r"\d+(\.\d+)?\s*[KMGT]i?B", re.IGNORECASE)
_SIZES = TypeAdapter(ByteSize)


class SettingsForm(BaseModel):
    """The base of the classes with settings."""

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
        """Convert a size with a unit, such as `4GiB`, to bytes. Values of other fields are returned unchanged."""
        is_size = (info.field_name or "").endswith("_bytes") and isinstance(value, str) and _SIZE.fullmatch(value)
        return str(int(_SIZES.validate_python(value))) if is_size else value
