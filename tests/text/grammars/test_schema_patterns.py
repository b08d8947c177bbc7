"""Patterns of schemas with the semantics of ECMA-262."""

import json

import pytest

from genai_server.errors import InvalidField
from genai_server.text.grammars import grammar
from tests.text.guided import assert_answers, followed


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        ("^.$", ["a", "😀", '"', "\\"], ["\r", "\n", "\u2028"]),
        (r"^[^/\\]+$", ["a", '"'], ["\\", "/"]),
        ('^[^"]*$', ["a\\"], ['"']),
        (r"^\s$", ["\ufeff", "\xa0", " "], ["\x85"]),
        (r"^[\s\S]$", ["a", "\n", "\x85"], [""]),
        (r"^[^\s]$", ["a", "\x85"], ["\ufeff"]),
        ("^[a&&b]$", ["&", "a", "b"], []),
        ("^[[]$", ["["], []),
        (r"^[+\--]$", ["+", "-"], [","]),
        (r"^[\w.-]$", ["-", ".", "a"], ["é"]),
        (r"^[a-\d]$", ["-", "a", "1"], ["b"]),
        (r"^\cJ[\cm]$", ["\n\r"], ["J\r", "\nm"]),
        (r"^\d\D$", ["1a"], ["11", "٣a"]),
        (r"^\u00e9\x41\u{1F600}\ud83d\ude00\/\-$", ["éA😀😀/-"], []),
        (r"^\p{Lu}$", ["É"], ["e"]),
        (r"^\P{L}$", ["1"], ["a", "\U000330d8"]),
        ("^(?<stop>a)b(?:c|d)$", ["abc", "abd"], ["a", "ab"]),
        ("(?i)^a$", ["A", "a"], ["b"]),
        ("^a|b$", ["ax", "xb"], ["xa"]),
        ("b", ["abc"], ["ac"]),
        (r"^a{2}\{$", ["aa{"], ["a{"]),
        ("^a{$", ["a{"], []),
        (r"^[\b]$", ["\b"], ["b"]),
        (r"^\\d$", ["\\d"], ["\\1"]),
    ],
)
def test_a_pattern_means_what_it_means_in_ecma_262(pattern: str, good: list[str], bad: list[str]) -> None:
    quoted = ([json.dumps(text, ensure_ascii=False) for text in texts] for texts in (good, bad))
    assert_answers(followed({"type": "string", "pattern": pattern}), *quoted)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("^(?!a)", "lookaround"),
        ("(?<=a)b", "lookaround"),
        ("(?x)a b", "has a lookaround assertion or an unsupported kind of group"),
        ("[]a]", "class without characters"),
        ("[^]", "class without characters"),
        ("[a", "ends too early"),
        ("a\\", "ends too early"),
        (r"\ud800", "no character"),
        (r"\u{110000}", "no character"),
        (r"(a)\1", "backreferences"),
        (r"\v", "Regex is empty"),
    ],
)
def test_a_pattern_that_cannot_be_followed_is_refused(pattern: str, words: str) -> None:
    with pytest.raises(InvalidField, match=words):
        followed({"type": "string", "pattern": pattern})


def test_keys_are_matched_by_their_patterns_in_the_same_way() -> None:
    schema = {
        "type": "object",
        "patternProperties": {"^.$": {"type": "integer"}},
        "additionalProperties": {"const": "x"},
    }
    built = grammar.json_schema(schema)
    assert_answers(built, ['{"a": 1, "bc": "x", "\\r": "x"}'], ['{"\\r": 1}', '{"a": "x"}'])
    with pytest.raises(InvalidField, match="only if additionalProperties is false"):
        grammar.json_schema({"patternProperties": {r"^\p{L}$": {}}})
    with pytest.raises(InvalidField, match="twice"):
        grammar.json_schema({"patternProperties": {"[a]\\d": {}, "[a][0-9]": {}, "[a](?:\\d)": {}, r"[\x61]\d": {}}})
