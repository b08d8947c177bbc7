"""Checks a template with all conversations in the bodies of all APIs: none is refused, and no text is lost silently."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from genai_server.text.prompts.template_traits import TemplateTraits

from .bodies import APIS, Body
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
        for shape, api, body in _bodies(rendered.takes_tools):
            prompt = rendered.render(api, body)
            found.num_prompts += 1
            if prompt.refusal:
                found.faults.append(f"{shape.name}, {api}: refused: {prompt.refusal}")
                continue
            missing = [word for word in shape.words if word not in prompt.prompt]
            named = sum(1 + int(entry["more"] or 0) for entry in _ENTRY.finditer(prompt.ignored))
            if len(missing) > named:
                found.faults.append(
                    f"{shape.name}, {api}: {len(missing)} texts are lost, {named} named: {prompt.ignored}"
                )
            if shape.continues and not prompt.prompt.endswith(shape.turns[-1].text):
                found.faults.append(f"{shape.name}, {api}: the prompt does not end in the answer")
            found.num_converted += bool(prompt.converted)
            found.num_shortened += bool(missing)
    finally:
        rendered.close()
    return found


@lru_cache
def _all_bodies(has_tools: bool) -> list[tuple[Shape, str, Body]]:
    made = ((shape, api, make(shape, has_tools=has_tools)) for shape in shapes() for api, make in APIS.items())
    return [(shape, api, body) for shape, api, body in made if body is not None]


def _bodies(takes_tools: bool) -> Iterator[tuple[Shape, str, Body]]:
    """The bodies for a template. Conversations with calls come without tools, too, as when a tool is taken away."""
    yield from _all_bodies(takes_tools)
    if takes_tools:
        yield from (
            one
            for one in _all_bodies(False)
            if one[1] == "/v1/chat/completions" and any(turn.calls for turn in one[0].turns)
        )
