"""Check chat templates of published models: what one writes of an earlier call, the server reads as that call.

FOLDER has templates (.jinja); without it, those among llama.cpp's sources are downloaded from PyPI once. For each, the
formats are detected as at a server's start, and a conversation with calls and results is rendered. The part that the
template writes for the model's own turn is then parsed like an answer. Ends with status 1 if a call of a detected
format is read differently.

With --conversations it shows instead how conversations are adapted to each template, after rendering those of
scripts/_templates/shapes.toml; and ends with status 1 if one is refused, or if a text is lost without being named.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

from _models.table import table
from _templates.check import check as check_conversations
from _templates.published import published_templates
from _templates.rendering import SPECIAL, usable

from genai_server.answer_parts import Reasoning, ToolCallArguments, ToolCallStart
from genai_server.errors import GenaiServerError
from genai_server.text.answers.answer_text import AnswerParser
from genai_server.text.answers.reasoning import ReasoningState
from genai_server.text.prompts.chat_template import ChatTemplate
from genai_server.text.prompts.prompt import PromptWriter
from genai_server.text.prompts.template_traits import CallForm, TemplateTraits, TextBesideCalls
from genai_server.text.tool_formats.all_formats import Dialect, read_dialect

HEAD = ["template", "format", "calls", "reasoning"]
CONVERSATIONS_HEAD = [
    *("template", "system messages", "neighbours", "text after results", "calls", "text next to calls", "reasoning"),
    *("thinking", "prompts", "converted", "shortened"),
]
PROPERTIES = {"city": {"type": "string"}, "days": {"type": "integer"}}
FUNCTIONS: dict[str, dict[str, Any]] = {
    "get_weather": {"type": "object", "properties": PROPERTIES, "required": ["city"]},
    "get_time": {"type": "object", "properties": {"zone": {"type": "string"}}, "required": ["zone"]},
}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": f"Answers {name}.", "parameters": schema}}
    for name, schema in FUNCTIONS.items()
]
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("get_weather", {"city": "Ærø <b>", "days": 3}),
    ("get_time", {"zone": "UTC"}),
]
BESIDE = {
    TextBesideCalls.WRITTEN: "as it is",
    TextBesideCalls.BEFORE: "a message of its own",
    TextBesideCalls.LOST: "left out",
}
THOUGHT, TEXT = "I have to look.", "Nothing else."
USER = {"role": "user", "content": "How is the weather?"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", metavar="FOLDER")
    parser.add_argument("--conversations", action="store_true", help="check conversations instead of tool formats")
    arguments = parser.parse_args()
    folder = arguments.folder or published_templates()
    rows, faults = conversations(folder) if arguments.conversations else formats(folder)
    print(table(rows, markdown=True))
    for fault in faults:
        print(fault, file=sys.stderr)
    sys.exit(bool(faults))


def formats(folder: Path) -> tuple[list[list[str]], list[str]]:
    """The table of formats, and what is read differently."""
    rows, faults = [HEAD], []
    for path in sorted(folder.glob("*.jinja"), key=lambda path: path.name.lower()):
        source = path.read_text(encoding="utf-8")
        dialect = read_dialect(source)
        calls, reasoning = check(source, dialect)
        if calls.startswith("differ"):
            faults.append(f"{path.stem}: {calls}")
        names = [part.name if part else "–" for part in (dialect.tool_format, dialect.reasoning)]
        rows.append([path.stem, names[0], calls, names[1] + reasoning])
    return rows, faults


def conversations(folder: Path) -> tuple[list[list[str]], list[str]]:
    """The table of conversations, and the faults."""
    rows, faults = [CONVERSATIONS_HEAD], []
    for path in usable(folder):
        checked = check_conversations(path)
        faults += [f"{path.stem}: {fault}" for fault in checked.faults]
        numbers = (checked.num_prompts, checked.num_converted, checked.num_shortened)
        rows.append([path.stem, *in_columns(checked.traits), *map(str, numbers)])
    return rows, faults


def in_columns(traits: TemplateTraits) -> list[str]:
    """What a template writes, in short."""
    system = "as they are" if traits.later_instructions else "later ones as text"
    neighbours = traits.user_after_user and traits.assistant_after_assistant
    thinking = traits.thinking
    switch = ", ".join([*thinking.switch_off, *([thinking.effort] if thinking.effort else [])])
    return [
        system if traits.leading_instructions else "as text",
        "as they are" if neighbours else "joined",
        "as it is" if traits.user_after_tool else "in the result",
        "as text" if traits.calls is CallForm.TEXT else str(traits.calls),
        "–" if traits.calls is CallForm.TEXT else BESIDE[traits.text_beside_calls],
        traits.reasoning_field or "left out",
        switch or "–",
    ]


def check(source: str, dialect: Dialect) -> tuple[str, str]:
    """What became of the calls, and what of the reasoning."""
    if dialect.tool_format is None:
        return "–", ""
    found: tuple[str, str] | None = None
    for called in (CALLS, CALLS[:1]):  # some templates have one call only
        try:
            read = read_back(source, dialect, called)
        except GenaiServerError as error:
            read = f"refused: {error.message}", ""
        if read[0].endswith("read"):
            return read
        found = found or read
    assert found is not None
    return found


def read_back(source: str, dialect: Dialect, called: Sequence[tuple[str, dict[str, Any]]]) -> tuple[str, str]:
    """As `check`, with these calls. Raises InvalidField if the template refuses them."""
    template = ChatTemplate(source, SPECIAL)
    assert dialect.tool_format is not None
    writer = PromptWriter({"default": template}, tool_format=dialect.tool_format)
    calls = [
        {
            "id": call_id(dialect, name, n),
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(given)},
        }
        for n, (name, given) in enumerate(called)
    ]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "21"} for call in calls]
    turn = {"role": "assistant", "content": None, "reasoning_content": THOUGHT, "tool_calls": calls}
    begun = writer.write([USER], TOOLS, None).text
    complete = {"add_generation_prompt": False} if "add_generation_prompt" in template.variables else None
    ended, plain = (
        writer.write([USER, message], TOOLS, complete).text
        for message in (turn, {"role": "assistant", "content": TEXT})
    )
    if writer.write([USER, turn, *results], TOOLS, None).text.count("21") < len(results):
        return "differ: results are left out", ""
    reasoning = dialect.reasoning
    begins_inside = reasoning is not None and reasoning.state_after(begun) is ReasoningState.INSIDE
    if reasoning is not None and begins_inside and not ended.startswith(begun):  # a call without its reasoning
        begins_inside, begun = False, begun.rstrip().removesuffix(reasoning.opening)
    common = re.sub(r"<\w*$", "", os.path.commonprefix([begun, ended]))  # not a part of two markers
    answer = ended[len(common) :].removesuffix(plain.rpartition(TEXT)[2])
    found, thought = parse(answer, dialect, begins_inside=begins_inside)
    if found != list(called):
        return f"differ: {answer!r} is read as {found}", ""
    said = "read" if thought == THOUGHT else "not in the template"
    return f"{len(called)} read", "" if reasoning is None else f", {said}"


def call_id(dialect: Dialect, name: str, number: int) -> str:
    """The id of an earlier call: Kimi's models have ids of their own, Mistral's take nine letters and digits only."""
    is_own = dialect.tool_format is not None and dialect.tool_format.name == "kimi"
    return f"functions.{name}:{number}" if is_own else f"call0000{number}"


def parse(answer: str, dialect: Dialect, *, begins_inside: bool) -> tuple[list[tuple[str, Any]], str]:
    """The calls of an answer, each with its name and arguments, and the reasoning."""
    ids = map(str, count())
    parser = AnswerParser(
        dialect.tool_format,
        FUNCTIONS,
        reasoning=dialect.reasoning,
        starts_in_reasoning=begins_inside,
        new_id=lambda: next(ids),
    )
    parts = [*parser.feed(answer), *parser.finish()]
    names = [part.name for part in parts if isinstance(part, ToolCallStart)]
    texts = [""] * len(names)
    for part in parts:
        if isinstance(part, ToolCallArguments):
            texts[part.index] += part.fragment
    thought = "".join(part.text for part in parts if isinstance(part, Reasoning))
    return [(name, json.loads(text or "null")) for name, text in zip(names, texts, strict=True)], thought.strip()


if __name__ == "__main__":
    main()
