"""Chat templates of published models with conversations as agents and other servers write them.

The templates are part of a package of llama.cpp's sources, which is downloaded once; without it the tests are skipped.
scripts/check_templates.py shows what becomes of each conversation.
"""

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from _templates.check import check
from _templates.published import NotAvailable, published_templates
from _templates.rendering import SPECIAL, usable
from _templates.shapes import shapes

from genai_server.text.prompts.chat_template import ChatTemplate
from genai_server.text.prompts.prompt import PromptWriter
from genai_server.text.prompts.template_probe import TOOLS
from genai_server.text.tool_formats.all_formats import read_dialect

# Templates that write something else before the last message of the user than after it: the tools, or empty reasoning.
UNSTABLE = {
    "mistralai-Mistral-Nemo-Instruct-2407",
    "Mistral-Small-3.2-24B-Instruct-2506",
    "Qwen3.5-4B",
    "StepFun3.5-Flash",
}
# What others write where an answer begins, and not in later prompts, in characters.
MAX_END = 30
CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
IMAGE = {"type": "image"}


@pytest.fixture(scope="module")
def templates() -> Path:
    try:
        return published_templates()
    except NotAvailable as error:
        pytest.skip(str(error))


@pytest.mark.timeout(600)
def test_no_history_is_refused_and_no_text_lost_silently(templates: Path) -> None:
    paths = usable(templates)
    assert len(paths) == 66
    faults = {path.stem: found for path in paths if (found := check(path).faults)}
    assert faults == {}


def _writer(path: Path, image_marker: str = "") -> PromptWriter:
    template = ChatTemplate(path.read_text(encoding="utf-8"), SPECIAL)
    return PromptWriter({"default": template}, (), read_dialect(template.source).tool_format, image_marker)


@pytest.mark.timeout(600)
def test_prompts_of_a_growing_conversation_begin_alike(templates: Path) -> None:
    written = next(shape.messages for shape in shapes() if shape.name == "an agent's ten turns")
    messages = [{name: value for name, value in one.items() if name != "reasoning_content"} for one in written]
    # Where an agent asks for an answer.
    ends = [n for n in range(1, len(messages)) if messages[n]["role"] == "assistant" != messages[n - 1]["role"]]
    unstable = set()
    for path in usable(templates):
        writer = _writer(path)
        tools = TOOLS if writer.takes_tools else None
        prompts = [writer.write(messages[:end], tools, None).text for end in ends]
        read_again = [len(one) - len(os.path.commonprefix([one, other])) for one, other in pairwise(prompts)]
        if max(read_again) > MAX_END:
            unstable.add(path.stem)
    assert unstable == UNSTABLE


@pytest.mark.parametrize(
    ("name", "marker", "in_result"),
    [
        ("mistralai-Ministral-3-14B-Reasoning-2512", "[IMG]", False),
        ("Mistral-Small-3.2-24B-Instruct-2506", "[IMG]", False),
        ("Qwen3.5-4B", "<|vision_start|><|image_pad|><|vision_end|>", True),
    ],
)
def test_images_of_results_and_neighbours_are_written(templates: Path, name: str, marker: str, in_result: bool) -> None:
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "text", "text": "Look!"}, {**IMAGE}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "seen"}, {**IMAGE}]},
        {"role": "user", "content": [{**IMAGE}, {"type": "text", "text": "And this?"}]},
        {"role": "user", "content": "Now?"},
    ]
    written = _writer(templates / f"{name}.jinja", marker).write(messages, None, None)
    assert written.text.count(marker) == 3
    assert list(written.media) == [0, 1, 2]
    is_moved = any("its images and audio as a message of the user" in remark for _, remark in written.converted)
    assert is_moved is not in_result
