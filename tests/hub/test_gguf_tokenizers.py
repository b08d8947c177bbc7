"""Text is split as llama.cpp splits it, by the rule that a GGUF file names."""

import json

import pytest
from tokenizers import Tokenizer, models

from genai_server.hub.gguf_tokenizers import RULES

# The pieces that llama.cpp's expressions of each rule leave (llama-vocab.cpp), separated by |.
PIECES = {
    "smollm": [
        ("a\n\n1. x", "a|\n\n|1|.| x"),
        ("    42", "    |4|2"),
        ("a   2", "a|   |2"),
        (" ½", " |½"),
        ("x\n  3", "x|\n  |3"),
        ("3½ cups, ⅓", "3|½| cups|,| |⅓"),
        ("中文字符 and 日本語。12個", "中文字符| and| 日本語|。|1|2|個"),
        ("שלום עולם 123", "שלום| עולם| |1|2|3"),
    ],
    "gpt-2": [
        ("a\n\n1. x", "a|\n|\n|1|.| x"),
        ("    42", "   | 42"),
        (" ½", " ½"),
        ("hi 🇩🇪!", "hi| 🇩🇪!"),
        ("I'll DON'T", "I|'ll| DON|'|T"),
    ],
    "llama-bpe": [
        ("a\n\n1. x", "a|\n\n|1|.| x"),
        ("1234567 8.50", "123|456|7| |8|.|50"),
        ("def f(x):\n    return  x[0]\n", "def| f|(x|):\n|   | return| | x|[|0|]\n"),
        ("I'll DON'T", "I|'ll| DON|'T"),
        ("\t\tx\r\n\r\ny", "\t|\tx|\r\n\r\n|y"),
        ("مرحبا 12", "مرحبا| |12"),
    ],
    "qwen2": [("1234 8.5", "1|2|3|4| |8|.|5"), ("    42", "   | |4|2"), ("a\n\n\n b", "a|\n\n\n| b")],
    "qwen35": [("e\u0301te\u0301", "e\u0301te\u0301"), ("दुनिया 12", "दुनिया| |1|2")],
    "tekken": [("HelloWorld XMLHttp 12", "Hello|World| XMLHttp| |1|2"), ("a//b\n//", "a|//|b|\n|//")],
    "gpt-4o": [("HelloWorld it's 1234", "Hello|World| it's| |123|4")],
}
CASES = [(name, *case) for name, cases in PIECES.items() for case in cases]


def tokenizer_with(name: str, model: models.BPE) -> Tokenizer:
    contents = json.loads(Tokenizer(model).to_str())
    RULES[name].apply(contents)
    return Tokenizer.from_str(json.dumps(contents))


@pytest.mark.parametrize(("name", "text", "pieces"), CASES)
def test_text_is_split_by_the_files_rule(name: str, text: str, pieces: str) -> None:
    pre_tokenizer = tokenizer_with(name, models.BPE()).pre_tokenizer
    found = [text[slice(*place)] for _, place in pre_tokenizer.pre_tokenize_str(text)]
    assert "|".join(found) == pieces


def test_names_of_one_rule_split_alike_and_unknown_ones_have_none() -> None:
    assert RULES["smollm"] == RULES["starcoder"] != RULES["gpt-2"]
    assert RULES["llama-bpe"].expressions == RULES["smaug-bpe"].expressions
    assert RULES["deepseek-r1-qwen"] == RULES["qwen2"]
    assert "default" not in RULES
    assert "deepseek-coder" not in RULES


def test_a_piece_that_is_a_token_needs_no_merges() -> None:
    model = models.BPE(vocab={"a": 0, "b": 1, "ab": 2}, merges=[])
    assert tokenizer_with("llama-bpe", model).encode("ab").tokens == ["ab"]
    assert tokenizer_with("qwen2", model).encode("ab").tokens == ["a", "b"]
