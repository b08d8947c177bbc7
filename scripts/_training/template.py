"""The demo model's chat template, rendered as Hugging Face renders it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from _models.environment import REPOSITORY
from jinja2 import Template
from jinja2.sandbox import ImmutableSandboxedEnvironment

Message = dict[str, Any]
Tool = dict[str, Any]

SOURCE = REPOSITORY / "models" / "demo" / "chat_template.jinja"


def _to_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def load_template(path: Path = SOURCE) -> Template:
    """Compile a chat template file with the settings that Hugging Face uses."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = _to_json
    return environment.from_string(path.read_text(encoding="utf-8"))


def render(template: Template, messages: list[Message], tools: list[Tool] | None, *, answer_next: bool) -> str:
    """The text of a conversation, up to the place where the assistant answers if `answer_next`."""
    return template.render(messages=messages, tools=tools, add_generation_prompt=answer_next)
