"""Open Responses' compliance suite, on the demo model: its cases, by a program that sends the same requests.

Two of its 17 cases are omitted: one needs a model that sees images, and one sends no request.
"""

from __future__ import annotations

from dataclasses import replace

from .client import Client, Model
from .libraries import library

OPEN_RESPONSES: Client = replace(
    library(
        "Open Responses' compliance cases",
        ("openresponses-py", "jsonschema", "websockets", "pydantic"),
        "open_responses.py",
    ),
    model=Model.DEMO,
)
