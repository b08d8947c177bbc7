"""Checks a template with all conversations: none is refused, and no text is lost silently."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from genai_server.text.prompts.template_traits import TemplateTraits

from .rendering import RenderedBodies
from .shapes import Shape, shapes

# An entry of a header: how many places it stands for, and what became of them.
_ENTRY = re.compile(r"(?: and (?P<more>\d+) more)? \([^()]*\)(?=, |$)")


@dataclass
class Checked:
    """What became of the conversations with one template."""

    # What the probe has found out, for conversations with tools if the template takes them.
    traits: TemplateTraits
    num_prompts: int = 0
    # Prompts in which something has another form, and in which something is left out and named.
    num_converted: int = 0
    num_shortened: int = 0
    faults: list[str] = field(default_factory=list)


def check(path: Path) -> Checked:
    """Render all conversations with the template in a file."""
    rendered = RenderedBodies(path.read_text(encoding="utf-8"))
    found = Checked(rendered.codec.writer.traits(with_tools=rendered.takes_tools))
    try:
        for shape in shapes():
            _check(found, rendered, shape, has_tools=rendered.takes_tools)
            # Conversations with calls come without tools, too, as when a tool is taken away.
            if rendered.takes_tools and shape.has_calls:
                _check(found, rendered, shape, has_tools=False)
    finally:
        rendered.close()
    return found


def _check(found: Checked, rendered: RenderedBodies, shape: Shape, *, has_tools: bool) -> None:
    prompt = rendered.render("/v1/chat/completions", shape.body(has_tools=has_tools))
    found.num_prompts += 1
    if prompt.refusal:
        found.faults.append(f"{shape.name}: refused: {prompt.refusal}")
        return
    missing = [word for word in shape.words if word not in prompt.prompt]
    named = sum(1 + int(entry["more"] or 0) for entry in _ENTRY.finditer(prompt.ignored))
    if len(missing) > named:
        found.faults.append(f"{shape.name}: {len(missing)} texts are lost, {named} named: {prompt.ignored}")
    if shape.continues and not prompt.prompt.endswith(shape.messages[-1]["content"]):
        found.faults.append(f"{shape.name}: the prompt does not end in the answer")
    found.num_converted += bool(prompt.converted)
    found.num_shortened += bool(missing)
