"""The capabilities of models as Anthropic's client parses them."""

from contextlib import closing
from typing import Any

import pytest
from anthropic.types import ModelInfo

from genai_server.apis.models import anthropic_entry
from genai_server.text.codec import TextCodec
from genai_server.text.prompts.chat_template import ChatTemplate
from genai_server.text.tokenizer import ByteTokenizer

ENTRY = {"id": "demo", "created": 0, "max_model_len": 2000, "chat": True, "capabilities": ["completion"]}


def _supported(template: str, **fields: Any) -> set[str]:
    """The paths of what a model with this chat template supports."""
    with closing(TextCodec({"default": ChatTemplate(template)}, ByteTokenizer())) as codec:
        model = ModelInfo.model_validate(anthropic_entry({**ENTRY, **fields}, codec))
    assert model.capabilities is not None
    return set(_paths(model.capabilities.model_dump()))


def _paths(capabilities: dict[str, Any], path: str = "") -> list[str]:
    found = [path] if capabilities.get("supported") else []
    for name, value in capabilities.items():
        if isinstance(value, dict):
            found += _paths(value, f"{path}.{name}" if path else name)
    return found


@pytest.mark.parametrize(
    ("template", "capabilities", "more"),
    [
        ("", [], set()),
        ("{{ reasoning_effort }}", [], {"effort"}),
        ("", ["vision"], {"image_input"}),
        ("", ["thinking"], {"thinking", "thinking.types.adaptive"}),
        (
            "{{ enable_thinking }}",
            ["thinking"],
            {"thinking", "thinking.types.adaptive", "thinking.types.enabled"},
        ),
        (
            "{{ reasoning_effort }}",
            ["thinking"],
            {"effort", "thinking", "thinking.types.adaptive", "thinking.types.enabled"},
        ),
    ],
)
def test_capabilities_follow_from_the_chat_template(template: str, capabilities: list[str], more: set[str]) -> None:
    if "effort" in more:
        more |= {f"effort.{level}" for level in ("low", "medium", "high", "xhigh", "max")}
    supported = _supported(template, capabilities=["completion", *capabilities])
    assert supported == {"structured_outputs", "thinking.types.disabled", *more}


def test_model_without_chats_supports_nothing_of_messages() -> None:
    assert _supported("{{ reasoning_effort }}", chat=False, capabilities=["embedding"]) == set()


def test_capabilities_of_an_unloaded_model_are_unknown() -> None:
    assert ModelInfo.model_validate(anthropic_entry(ENTRY, None)).capabilities is None
