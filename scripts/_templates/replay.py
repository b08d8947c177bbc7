"""Replays a program's requests with the templates of models that it may meet: none is refused or loses a text silently.

The prompts of these programs are their makers', so nothing of them is kept. A fault names the place of a text only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from .published import published_templates
from .rendering import Rendered, RenderedBodies

TEMPLATES = {
    "Qwen 3.5": "Qwen3.5-4B",
    "gpt-oss": "openai-gpt-oss-120b",
    "Ministral 3": "mistralai-Ministral-3-14B-Reasoning-2512",
    "Llama 3.3": "meta-llama-Llama-3.3-70B-Instruct",
}
_CONVERSATION = ("system", "instructions", "messages", "input")
_TEXTS = ("text", "content", "thinking", "reasoning_content", "output", "refusal")
# Shorter lines stand in many places.
_SHORTEST = 12
_MAX_NAMED = 5


def faults(path: str, body: dict[str, Any]) -> list[str]:
    """What is wrong with the prompts of a body, each with the template's name. Raises NotAvailable."""
    found, folder = [], published_templates()
    for name, file in TEMPLATES.items():
        rendered = RenderedBodies((folder / f"{file}.jinja").read_text(encoding="utf-8"))
        try:
            found += [f"{name}: {fault}" for fault in _faults(rendered.render(path, body), body)]
        finally:
            rendered.close()
    return found


def _faults(rendered: Rendered, body: dict[str, Any]) -> list[str]:
    if rendered.refusal:
        return [f"refused: {rendered.refusal[:200]}"]
    lost = [place for place, text in texts(body) if not is_in(text, rendered.prompt) and place not in rendered.ignored]
    return [f"lost without being named: {', '.join(lost[:_MAX_NAMED])}"] if lost else []


def texts(body: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The texts of a body's conversation, each with its message or item, such as `messages[3]`."""
    for field in _CONVERSATION:
        given = body.get(field)
        if isinstance(given, str):
            yield field, given
        for index, element in enumerate(given if isinstance(given, list) else ()):
            yield from ((f"{field}[{index}]", text) for text in _strings(element))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for element in value:
            yield from _strings(element)
    elif isinstance(value, dict):
        for name in _TEXTS:
            inner = value.get(name)
            if isinstance(inner, str):
                yield inner
            elif inner is not None:
                yield from _strings(inner)


def is_in(text: str, prompt: str) -> bool:
    """Whether a prompt has all lines of a text, as they are or within JSON."""
    lines = [line.strip() for line in text.splitlines() if len(line.strip()) >= _SHORTEST]
    return all(
        line in prompt or json.dumps(line, ensure_ascii=False)[1:-1] in prompt or json.dumps(line)[1:-1] in prompt
        for line in lines
    )
