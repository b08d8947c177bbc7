"""The text of a custom tool's call within the arguments of the function that represents the tool."""

import json

import pytest

from genai_server.generation.parameters.chat_messages import CustomText, arguments_of, function_of, text_of

TEXTS = ["", "a", 'say "hi"\\\n\t/', "é 漢 😀", "}", '"}', "\x00\x1f"]


@pytest.mark.parametrize("text", TEXTS, ids=ascii)
@pytest.mark.parametrize("ascii_only", [False, True])
def test_text_is_read_in_pieces_of_any_size(text: str, ascii_only: bool) -> None:
    arguments = json.dumps({"input": text}, ensure_ascii=ascii_only)
    assert json.loads(arguments_of(text)) == {"input": text}
    assert text_of(arguments) == text
    for size in range(1, len(arguments) + 1):
        reader = CustomText()
        pieces = [reader.feed(arguments[place : place + size]) for place in range(0, len(arguments), size)]
        assert "".join(pieces) == reader.text == text
        assert reader.finish() == ""


def test_arguments_that_are_cut_off_have_the_text_so_far() -> None:
    assert text_of('{"input": "a\\nb\\u00') == "a\nb"
    assert text_of(r'{"input": "a\ud83d') == "a"
    assert text_of('{ "input"\n: "x') == "x"


@pytest.mark.parametrize("arguments", ["", "plain text", '{"other": "x"}', '{"input": 5}', '["input"]'])
def test_arguments_in_another_format_are_the_text(arguments: str) -> None:
    reader = CustomText()
    assert "".join(reader.feed(character) for character in arguments) == ""
    assert reader.finish() == reader.text == arguments


def test_a_function_has_the_description_and_the_grammar_of_the_tool() -> None:
    function = function_of("patch", None, "lark", "start: /a/")
    assert function == {
        "name": "patch",
        "parameters": {
            "type": "object",
            "properties": {"input": {"type": "string", "x-lark": "start: /a/"}},
            "required": ["input"],
        },
        "strict": True,
    }
    assert function_of("patch", "d", None, None)["description"] == "d"
