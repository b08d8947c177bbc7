"""The demo model's chat template, rendered as Hugging Face renders it."""

from __future__ import annotations

import functools
import json
from typing import Any

from _models.environment import REPOSITORY
from jinja2.sandbox import ImmutableSandboxedEnvironment

Message = dict[str, Any]
Tool = dict[str, Any]
SOURCE = (REPOSITORY / "models" / "demo" / "chat_template.jinja").read_text(encoding="utf-8")
_ENVIRONMENT = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
_ENVIRONMENT.filters["tojson"] = functools.partial(json.dumps, ensure_ascii=False)
_TEMPLATE = _ENVIRONMENT.from_string(SOURCE)


def render(messages: list[Message], tools: list[Tool] | None = None) -> str:
    """The text of a conversation, up to the end of its last message."""
    return _TEMPLATE.render(messages=messages, tools=tools, add_generation_prompt=False)
