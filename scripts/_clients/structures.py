"""Libraries that bind answers to a grammar through the fields of other servers."""

from __future__ import annotations

from .client import Model
from .libraries import library

STRUCTURES = (
    library("guidance", ("guidance", "openai", "pydantic"), "guidance_models.py", model=Model.DEMO),
    library("outlines", ("outlines[openai]", "pydantic"), "outlines_models.py", model=Model.DEMO),
)
