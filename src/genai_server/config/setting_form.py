"""What all settings have in common: how their fields are read, and how they are named outside."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

# Fields whose environment variables other servers read, too; those of all others begin with GENAI_.
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
    """The environment variable of a field of Settings."""
    return name.upper() if name in _UNPREFIXED else f"GENAI_{name.upper()}"


def option(name: str) -> str:
    """The command-line option of a field of Settings."""
    return "--" + name.replace("_", "-")


class SettingsForm(BaseModel):
    """The base of classes with settings."""

    model_config = ConfigDict(
        frozen=True,
        # The classes below Settings validate nothing.
        defer_build=True,
        populate_by_name=True,
        extra="forbid",
        alias_generator=environment_variable,
        use_attribute_docstrings=True,
    )
