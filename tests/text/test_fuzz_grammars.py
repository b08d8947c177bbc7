"""Random grammars, regular expressions and schemas: each is soon refused, or compiled and followed."""

import os
import random
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from genai_server.engine.runners.scripted import ScriptedRunner
from genai_server.engine.sampling.grammar import Guidance, bytes_guidance
from genai_server.errors import GrammarFailed, InvalidField
from genai_server.text.grammars import grammar
from tests.text.guided import validate

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "150"))
MAX_SECONDS = 20
STEPS = 12
fuzzed = settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])

ATOMS = ["a", ".", "\\d", "\\w", "\\p{L}", "[^a]", "[a-z0-9_]", "\\b", "^", "$", "(?i)", "\\u{10ffff}", "é", "\\", "["]
REPEATS = ["", "*", "+", "?", "{2}", "{0,}", "{1,900}", "{99999}", "{9,1}", "*?", "**"]
REGEXES = st.recursive(
    st.builds(str.__add__, st.sampled_from(ATOMS), st.sampled_from(REPEATS)),
    lambda inner: st.one_of(
        st.builds("({}){}".format, inner, st.sampled_from(REPEATS)),
        st.builds("{}|{}".format, inner, inner),
        st.builds("{}{}".format, inner, inner),
        st.builds("(?{}{})".format, st.sampled_from(["=", "!", "<=", ":", "P<n>", "x"]), inner),
    ),
    max_leaves=8,
)
SIMPLE = ["a", "b", "A", "B", '"x"', '"x"i', "/[0-9]+/", '"y".."z"', "/\\w{2,9}/"]
ODD = ['""', "/(/", "<|end|>", "<[1-5]>", "%json {}", "@a", "c", "start", "[x]"]
EXPRESSIONS = st.recursive(
    st.sampled_from([*SIMPLE * 6, *ODD]) | REGEXES.map("/{}/".format),
    lambda inner: st.one_of(
        st.builds("{} {}".format, inner, inner),
        st.builds("({} | {})".format, inner, inner),
        st.builds("({}){}".format, inner, st.sampled_from(["*", "+", "?", "{2,5}", "{1,900}", "~3"])),
        st.builds("({} & ~{})".format, inner, inner),
    ),
    max_leaves=5,
)
TOKENS = st.lists(st.sampled_from(SIMPLE[4:]), min_size=1, max_size=3).map(" ".join)
RULES = ["start", "a", "b"]
GRAMMARS = st.builds(
    lambda rules, tokens, more: "\n".join([*map(": ".join, rules.items()), *map(": ".join, tokens.items()), *more]),
    st.fixed_dictionaries(dict.fromkeys(RULES, EXPRESSIONS)),
    st.fixed_dictionaries(dict.fromkeys("AB", TOKENS)),
    st.lists(
        st.sampled_from(["%ignore /\\s/", "%llguidance {}", "%import x", "// c", "C: A B | C", "a[lazy]: b"]),
        max_size=1,
    ),
)

LEAVES: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False), st.text(max_size=5), REGEXES
)
KEYWORDS = re.findall(
    r"\S+",
    """
    type properties required items prefixItems anyOf oneOf allOf not enum const pattern format minLength maxLength
    minimum maximum exclusiveMinimum multipleOf minItems maxItems uniqueItems additionalProperties patternProperties
    $ref $defs if then else default description minProperties maxProperties propertyNames dependentRequired x
    """,
)
TYPES = ["object", "array", "string", "integer", "number", "boolean", "null", "strange", ""]
SCHEMAS: st.SearchStrategy[Any] = st.recursive(
    LEAVES
    | st.sampled_from(TYPES)
    | st.sampled_from(["#", "#/$defs/a", "#/properties/a", "date-time", "uuid", "regex"]),
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from(KEYWORDS), inner, max_size=4),
        st.builds(
            lambda kind, more: {**more, "type": kind},
            st.sampled_from(TYPES),
            st.dictionaries(st.sampled_from(KEYWORDS), inner),
        ),
        st.dictionaries(st.sampled_from(["a", "b", ""]), inner, max_size=3),
        st.lists(inner, max_size=3),
    ),
    max_leaves=15,
)
OBJECTS = SCHEMAS.filter(lambda schema: isinstance(schema, dict))


@pytest.fixture(scope="module")
def guidance() -> Guidance:
    return bytes_guidance(ScriptedRunner().model)


def follow(build: Callable[[], str], guidance: Guidance, seed: int) -> None:
    """Build and check it like the API process, compile and follow it like the engine."""
    started = time.process_time()  # which a busy machine does not change
    try:
        built = build()
        validate(built, param="grammar")
        if guidance.guide(built) is None:
            guidance.keep(built, guidance._compile(built))
        guide = guidance.guide(built)
        assert guide is not None
        chance = random.Random(seed)
        for _ in range(STEPS):
            allowed = guide.allowed().nonzero()[0]
            if guide.is_complete or not len(allowed):
                break
            guide.commit(int(chance.choice(allowed)))
    except (InvalidField, GrammarFailed) as error:
        assert error.message.strip()
    assert time.process_time() - started < MAX_SECONDS


@fuzzed
@given(REGEXES | st.text(), st.integers(0, 99))
@example("(a{1,900}){1,900}", 0)
@example("(" * 4000, 0)
@example("(a|b|ab)*c{0,900}" * 20, 0)
def test_a_regular_expression_is_refused_or_followed(guidance: Guidance, pattern: str, seed: int) -> None:
    follow(lambda: grammar.regex(pattern), guidance, seed)


@fuzzed
@given(GRAMMARS | st.text(), st.integers(0, 99))
@example("start: start start | ", 0)
@example("start: a\na: b a | a b | /x/\nb: a | ", 0)
@example("start: " + "(" * 4000 + '"x"' + ")" * 4000, 0)
def test_a_lark_grammar_is_refused_or_followed(guidance: Guidance, source: str, seed: int) -> None:
    follow(lambda: grammar.request_grammar(source, param="grammar"), guidance, seed)


@fuzzed
@given(OBJECTS, st.integers(0, 99))
@example({"$ref": "#"}, 0)
@example({"allOf": [{"$ref": "#"}, {"$ref": "#"}]}, 0)
@example({"type": "array", "minItems": 2**40}, 0)
@example({"type": "string", "minLength": 10**6, "pattern": "^(a|b)*$"}, 0)
@example({"type": "integer", "minimum": 1e308, "multipleOf": 1e-9}, 0)
def test_a_schema_is_refused_or_followed(guidance: Guidance, schema: Any, seed: int) -> None:
    follow(lambda: grammar.json_schema(schema), guidance, seed)
