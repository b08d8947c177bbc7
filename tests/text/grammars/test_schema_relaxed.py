"""The relaxed form of schemas that cannot be followed completely."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from genai_server.errors import InvalidField
from genai_server.text.grammars.json_schema import EVERYTHING, relaxed
from tests.running_server import ROOT, clean_environment
from tests.text.guided import assert_answers, fits, followed


def followed_best(schema: dict[str, Any]) -> tuple[str, list[str]]:
    found, left_out = relaxed(schema)
    return followed(found), left_out


def test_a_schema_that_can_be_followed_stays_as_it_is() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^a", "format": "date"}}}
    assert relaxed(schema) == (schema, [])


def test_unsupported_keywords_are_dropped_and_all_others_hold() -> None:
    built, left_out = followed_best(
        {
            "type": "object",
            "properties": {
                "path": {"type": "string", "format": "path", "minLength": 2},
                "tags": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
                "word": {"type": "string", "pattern": "^(?=a)b", "maxLength": 3},
                "far": {"$ref": "https://example.org/schema"},
                "least": {"type": "number", "multipleOf": 1e-20},
            },
            "required": ["path", "tags"],
            "not": {"required": ["word"]},
            "additionalProperties": False,
        }
    )
    assert sorted(left_out) == ["$ref", "format", "multipleOf", "not", "pattern", "uniqueItems"]
    good = '{"path": "/x", "tags": [1, 1], "word": "xyz", "far": {}}'
    bad = ['{"path": "x", "tags": []}', '{"path": "/x", "tags": ["a"]}', '{"path": "/x"}']
    assert_answers(built, [good], bad)


def test_schemas_of_one_of_that_overlap_and_keys_of_patterns_are_allowed() -> None:
    built, left_out = followed_best({"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 5}]})
    assert left_out == ["oneOf"]
    assert_answers(built, ["7"], ['"a"'])
    built, left_out = followed_best(
        {"type": "object", "patternProperties": {"(?=a)b": {"type": "integer"}}, "additionalProperties": False}
    )
    assert left_out == ["patternProperties"]
    assert fits(built, '{"b": 1}')


def test_type_alone_is_enforced_if_nothing_else_compiles() -> None:
    many: dict[str, Any] = {"type": "object", "properties": {str(number): {} for number in range(1_001)}}
    built, left_out = followed_best(many)
    assert left_out == [EVERYTHING]
    assert_answers(built, ['{"a": 1}'], ["1"])


def test_invalid_schema_is_refused() -> None:
    with pytest.raises(InvalidField, match="type must be one of"):
        relaxed({"properties": {"a": {"type": "text"}}})
    deep: dict[str, Any] = {}
    for _ in range(3_000):
        deep = {"items": deep}
    with pytest.raises(InvalidField, match="nested too deeply"):
        relaxed(deep)


@pytest.mark.slow
def test_schemas_of_a_folder_are_checked_with_their_relaxed_form(tmp_path: Path) -> None:
    whole = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    schemas = {"whole": whole, "part": {**whole, "not": {"required": ["b"]}}, "none": {"type": "any"}}
    for name, schema in schemas.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(schema), encoding="utf-8")
    command = [sys.executable, "scripts/fuzz.py", "schemas", "--files", str(tmp_path), "--best-effort"]
    done = subprocess.run(
        [*command, "--seed", "1", "--processes", "1"], cwd=ROOT, env=clean_environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for line in (r"taken +2\n", r"refused +type must be one of.* 1\n", r"followed in part +without not +1\n"):
        assert re.search(line, done.stdout)
