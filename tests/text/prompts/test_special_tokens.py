"""Special tokens in a request stay text, whatever a template does with it."""

import re
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genai_server.errors import InvalidField
from genai_server.text.prompts.chat_template import ChatTemplate
from genai_server.text.prompts.prompt import PromptWriter
from genai_server.text.prompts.special_tokens import Prompt, SpecialTokenGuard

# Some are parts of others, some overlap.
TOKENS = ["<|a|>", "<|a|>>", "<|ab|>", "[x]", "<s>", "|><|"]
TEMPLATES = {
    "plain": "<|a|>{{ messages[0].content }}<|ab|>",
    "trimmed": "<|a|>{{ messages[0].content | trim }}<|ab|>",
    "upper case": "[x]{{ messages[0].content | upper }}[x]",
    "lower case": "[x]{{ messages[0].content | lower }}[x]",
    "as JSON": "<s>{{ messages | tojson }}",
    "as JSON in ASCII": "<s>{{ messages | tojson(ensure_ascii=true) }}",
    "as Python writes it": "<s>{{ messages | string }}",
    "something taken out": "<|a|>{{ messages[0].content | replace('-', '') }}",
    "side by side": "<s>{{ messages[0].name }}{{ messages[0].content }}",
    "built around": "{{ '<|' + messages[0].name + '|>' + messages[0].content }}",
    "built before": "{{ '<|a' }}{{ messages[0].content }}",
    "built after": "{{ messages[0].content ~ '|a|>' }}",
    "built from the longer": "[{{ messages[0].name }}]",
    "the role": "<|{{ messages[0].role }}|>{{ messages[0].content }}",
}
# Texts that form tokens, alone and combined.
PARTS = [*re.findall(r"\S+", "<|a|> <|A|> <|ab|> [x] [X] <s> <| |> < > | a ab b [ ] x -"), " "]
FORGED = st.lists(st.sampled_from(PARTS), max_size=8).map("".join)


def special(pieces: list[str], tokens: list[str] = TOKENS) -> int:
    """The number of special tokens for a tokenizer that takes the longest match at each position."""
    count = 0
    for piece in pieces:
        place = 0
        while place < len(piece):
            found = max((token for token in tokens if piece.startswith(token, place)), key=len, default="")
            count += bool(found)
            place += len(found) or 1
    return count


@cache
def compiled(source: str) -> ChatTemplate:
    """Cached, because compiling takes longer than the rest of an example."""
    return ChatTemplate(source)


def messages(content: str, name: str) -> list[dict[str, Any]]:
    return [{"role": "ab", "name": name, "content": content}]


def written(source: str, content: str, name: str = "n", tokens: list[str] = TOKENS) -> Prompt:
    return PromptWriter({"default": compiled(source)}, tokens).write(messages(content, name), None, None).prompt


@pytest.mark.parametrize("source", TEMPLATES.values(), ids=TEMPLATES.keys())
@given(content=FORGED, name=FORGED)
def test_only_the_template_writes_special_tokens(source: str, content: str, name: str) -> None:
    prompt = written(source, content, name)
    assert special(prompt.pieces) == prompt.num_special
    assert prompt.num_special <= special([compiled(source).render({"messages": messages("-", "-")})])
    assert prompt.text == written(source, content, name, []).text


@pytest.mark.parametrize("source", TEMPLATES.values(), ids=TEMPLATES.keys())
@given(content=st.text("y <|-é👋\n", max_size=8).filter(lambda text: "<|" not in text and text[-1:] != "<"))
def test_a_text_without_forged_tokens_stays_in_one_piece(source: str, content: str) -> None:
    assert len(written(source, content, "y").pieces) == 1


@given(FORGED)
def test_a_plain_text_has_no_special_tokens(text: str) -> None:
    prompt = SpecialTokenGuard(TOKENS).plain(text)
    assert prompt.text == text
    assert special(prompt.pieces) == prompt.num_special == 0


def test_templates_make_special_tokens_of_roles() -> None:
    assert written(TEMPLATES["the role"], "x") == Prompt(["<|ab|>x"], 1)


def test_all_texts_in_containers_are_covered_if_there_are_special_tokens() -> None:
    guard = SpecialTokenGuard(["<s>"])
    covered = guard.cover({"a<s>": ["<s>", {"b": "<s>"}, 1, None, True]}, "tools")
    assert "<s>" not in str(covered)
    assert guard.uncover(str(covered)).text == "{'a<s>': ['<s>', {'b': '<s>'}, 1, None, True]}"
    guard = SpecialTokenGuard([])
    assert guard.cover(["<s>", "[x]"], "x") == ["<s>", "[x]"]
    assert guard.plain("<s>[x]") == guard.uncover("<s>[x]") == Prompt(["<s>[x]"], 0)
    value: list[Any] = []
    for _ in range(5000):
        value = [value]
    with pytest.raises(InvalidField, match="tools is nested too deeply"):
        SpecialTokenGuard(TOKENS).cover(value, "tools")


def test_conditions_and_escapes_of_a_template_see_texts_as_they_are() -> None:
    source = "{{ '</think>' in messages[0].content }}{{ messages[0].content.startswith('[') }}<|end|>"
    assert written(source, "[</think>|", tokens=["<|end|>"]).text == "TrueTrue<|end|>"
    text = r"\ud83d\udc4b \udc00 \ud800"
    prompt = written("{{ messages[0].content }}{{ messages[0].content | tojson }}", text)
    assert prompt.text == text + '"' + text.replace("\\", "\\\\") + '"'


def test_tokens_without_a_common_character_are_distinguished() -> None:
    tokens = [chr(0x4E00 + n) + chr(0x5E00 + n) for n in range(300)]
    prompt = written(tokens[0] + "{{ messages[0].content }}", "".join(tokens), tokens=tokens)
    assert prompt.num_special == special(prompt.pieces, tokens) == 1
