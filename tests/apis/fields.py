"""One table of the fields that requests for generated text may have: what each API makes of each value.

`tests/apis/test_fields.py` sends every value to every API. A field that an API does not have is in the table, too: it
is refused, or left out and named where the API takes unknown keys.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from genai_server.generation.parameters.base import ChatRouterFields, RouterFields, WithoutEffect

# The server of these requests: what bounds answers without a limit of their own, and what its engines take.
DEFAULT_MAX_TOKENS = 20
MAX_LENGTH = 2000
VOCABULARY = 257

# Codes of errors.
VALUE, TYPE, UNKNOWN = "invalid_value", "invalid_type", "unknown_parameter"
MISSING, UNSUPPORTED = "missing_required_parameter", "unsupported_parameter"
# HTTP statuses of the codes that are not 400.
STATUSES = {"model_not_found": 404, "conversation_not_found": 404, "request_not_found": 404}


@dataclass(frozen=True)
class Field:
    """What values a field may have, what they are to the engine, and how others are refused."""

    # An attribute of the engine's request, or with `body.` in front of the chat or text completion that the request
    # becomes; "" where the table does not show the effect.
    effect: str = ""
    # Values with what they mean, or values that mean themselves.
    taken: Sequence[Any] = ()
    # Values with the error's code and, in a third place, what follows the field's name in its parameter.
    refused: Sequence[tuple[Any, ...]] = ()
    # Whether null is the same as leaving the field out.
    may_be_null: bool = True


@dataclass(frozen=True)
class Means:
    """A value that is not the same to the engine."""

    given: Any
    # The value, or a function that says whether a value is the right one.
    meant: Any | Callable[[Any], bool]


def number(effect: str, lowest: float, highest: float, below: float, above: float, **more: Any) -> Field:
    """A number from `lowest` to `highest`."""
    refused = [(below, VALUE), (above, VALUE), (float("nan"), VALUE), (1e999, VALUE), ("1", TYPE), (True, TYPE)]
    return Field(effect, [lowest, highest], refused, **more)


def integer(effect: str, lowest: int, highest: int, **more: Any) -> Field:
    """An integer from `lowest` to `highest`."""
    refused = [(lowest - 1, VALUE), (highest + 1, VALUE), (1.5, TYPE), ("1", TYPE), (True, TYPE)]
    return Field(effect, [lowest, highest], refused, **more)


def switch(effect: str) -> Field:
    """`true` or `false`."""
    return Field(effect, [True, False], [(1, TYPE), ("true", TYPE)])


def anything(effect: str = "") -> Field:
    """A field without effect, which may have any value."""
    return Field(effect, [True, "x", 5, {"a": [1]}])


def is_given(value: Any) -> bool:
    return value is not None


# Sampling and limits of the answer.
SAMPLING: dict[str, Field] = {
    "temperature": number("sampling.temperature", 0.0, 2, -0.01, 2.01),
    "top_p": number("sampling.top_p", 0, 1.0, -0.01, 1.01),
    "min_p": number("sampling.min_p", 0, 1.0, -0.1, 1.1),
    "top_k": Field(
        "sampling.top_k",
        [0, 1_000_000, Means(-1, 0)],
        [(-2, VALUE), (1_000_001, VALUE), (1.5, TYPE), ("5", TYPE), (True, TYPE)],
    ),
    "repetition_penalty": number("sampling.repetition_penalty", 0.01, 10, 1e-300, 10.1),
    "frequency_penalty": number("sampling.frequency_penalty", -2, 2.0, -2.1, 2.1),
    "presence_penalty": number("sampling.presence_penalty", -2, 2.0, -2.1, 2.1),
    "repeat_last_n": integer("sampling.repeat_last_n", -1, 1_000_000),
    # The engine's seeds are not negative.
    "seed": Field(
        "sampling.seed",
        [0, 2**63 - 1, Means(-2, 2**64 - 2), Means(-(2**63), 2**63)],
        [(2**63, VALUE), (-(2**63) - 1, VALUE), (1.5, TYPE), ("7", TYPE)],
    ),
    "stop": Field(
        "body.stop_strings",
        [Means("b", ["b"]), ["b"], [str(number) for number in range(64)], ["b" * 1024]],
        [
            ("", VALUE),
            ([], VALUE),
            (["a", ""], VALUE, "[1]"),
            ([str(number) for number in range(65)], VALUE),
            ("b" * 1025, VALUE),
            (["a", "b" * 1025], VALUE, "[1]"),
            (5, TYPE),
            ([5], TYPE, "[0]"),
        ],
    ),
}
# Those of this server and of vLLM, which Ollama's API does not have.
MORE_SAMPLING: dict[str, Field] = {
    "logit_bias": Field(
        "sampling.logit_bias",
        [{}, Means({"0": 100, "7": -100.0, "8": 0}, {0: 100.0, 7: -100.0})],
        [
            ({"x": 1}, VALUE),
            ({"-1": 1}, VALUE),
            ({"²": 1}, VALUE),
            ({str(VOCABULARY): 1}, VALUE),
            ({str(token): 1 for token in range(1025)}, VALUE),
            ({"7": 100.5}, VALUE, ".7"),
            ({"7": "1"}, TYPE, ".7"),
            ([1], TYPE),
        ],
    ),
    "stop_token_ids": Field(
        "stop_token_ids",
        [[], [VOCABULARY - 1, 7], [1] * 128],
        [([-1], VALUE, "[0]"), (["a"], TYPE, "[0]"), ([1] * 129, VALUE), ([1, VOCABULARY], VALUE)],
    ),
    "include_stop_str_in_output": switch("body.include_stop_str_in_output"),
    "bad_words": Field(
        "sampling.bad_words",
        [[], Means(["x"], [[ord("x")], [ord(" "), ord("x")]])],
        [([""], VALUE, "[0]"), (["a"] * 1025, VALUE), ("x", TYPE), ([5], TYPE, "[0]")],
    ),
    "allowed_token_ids": Field(
        "sampling.allowed_tokens",
        [Means([0, 9], b"\x01\x02" + bytes(31))],
        [([], VALUE), ([-1], VALUE, "[0]"), (["a"], TYPE, "[0]"), ([VOCABULARY], VALUE)],
    ),
    "min_tokens": Field("min_tokens", [0, 5], [(-1, VALUE), (DEFAULT_MAX_TOKENS + 1, VALUE), (1.5, TYPE)]),
    "ignore_eos": switch("ignore_eos"),
    "cache_prompt": switch("cache_prompt"),
    "cache_salt": Field(
        "cache_salt", [Means("x", is_given), Means("x" * 1024, is_given)], [("", VALUE), ("x" * 1025, VALUE), (5, TYPE)]
    ),
    "priority": integer("priority", -1000, 1000),
    "exact": switch("exact"),
    "timeout": Field("", [0.5, 60], [(0, VALUE), (-1, VALUE), (10**9, VALUE), (float("nan"), VALUE), ("1", TYPE)]),
    "repetition_detection": Field(
        "body.repetition_detection",
        [Means({}, is_given), Means({"max_pattern_size": 1024, "min_count": 2}, is_given)],
        [
            ({"max_pattern_size": 5}, VALUE, ".min_count"),
            ({"max_pattern_size": 5, "min_count": 1}, VALUE, ".min_count"),
            ({"max_pattern_size": 5, "min_pattern_size": 6, "min_count": 2}, VALUE, ".min_pattern_size"),
            ({"max_pattern_size": 1025, "min_count": 2}, VALUE, ".max_pattern_size"),
            ({"max_pattern": 5, "min_count": 2}, UNKNOWN, ".max_pattern"),
        ],
    ),
    "structured_outputs": Field(
        "grammar",
        [
            Means({"regex": "x"}, is_given),
            Means({"json": '{"const": 1}'}, is_given),
            Means({"choice": ["x"]}, is_given),
        ],
        [
            ({}, VALUE),
            ({"regex": "a", "json": {}}, VALUE, ".regex"),
            ({"regex": ""}, VALUE, ".regex"),
            ({"regex": "("}, VALUE, ".regex"),
            ({"json": "{"}, VALUE, ".json"),
            ({"json": {"type": "nonsense"}}, VALUE, ".json"),
            ({"choice": []}, VALUE, ".choice"),
            ({"choice": ["a", ""]}, VALUE, ".choice[1]"),
            ({"grammar": "start: ("}, VALUE, ".grammar"),
            ({"lark": "x"}, UNKNOWN, ".lark"),
        ],
    ),
    "device": Field("body.device", ["scripted:1"], [("cuda", VALUE), (0, TYPE)]),
}
MODEL: dict[str, Field] = {
    "model": Field("", ["demo"], [("any", "model_not_found"), (5, TYPE), (["any"], TYPE)]),
    "max_tokens": Field(
        "max_tokens",
        [1, MAX_LENGTH // 2],
        [(0, VALUE), (-5, VALUE), (MAX_LENGTH + 1, VALUE), (1.5, TYPE), ("10", TYPE), (True, TYPE)],
    ),
}
_TEXT = {"type": "text", "text": "as "}
_OBJECT = {"type": "json_object"}
_NAMED = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
# Of /v1/chat and /v1/chat/completions.
CHAT: dict[str, Field] = {
    "max_completion_tokens": MODEL["max_tokens"],
    "logprobs": Field("top_logprobs", [Means(True, 0), Means(False, None)], [(1, TYPE), ("true", TYPE)]),
    "reasoning_effort": Field("body.reasoning_effort", ["none"], [("huge", VALUE), (5, VALUE)]),
    "thinking_token_budget": Field(
        "thoughts.budget", [0, 7, Means(-1, None)], [(-2, VALUE), (2**31, VALUE), ("5", TYPE), (1.5, TYPE)]
    ),
    "parallel_tool_calls": switch("body.parallel_tool_calls"),
    "chat_template_kwargs": Field(
        "body.chat_template_kwargs",
        [{}, {"enable_thinking": True}],
        [([], TYPE), ("x", TYPE), ({"surprise": 1}, VALUE)],
    ),
    "prediction": Field(
        "prediction",
        [
            Means({"type": "content", "content": "as"}, list(b"as")),
            Means({"type": "content", "content": [_TEXT, _TEXT]}, list(b"as as ")),
        ],
        [
            ("as before", TYPE),
            ({"content": "x"}, MISSING, ".type"),
            ({"type": "content"}, MISSING, ".content"),
            ({"type": "text", "content": "x"}, VALUE, ".type"),
            ({"type": "content", "content": "x", "more": 1}, UNKNOWN, ".more"),
            ({"type": "content", "content": "x" * (MAX_LENGTH + 1)}, VALUE),
        ],
    ),
    "response_format": Field(
        "grammar",
        [Means({"type": "text"}, None), Means(_OBJECT, is_given), Means(_NAMED, is_given)],
        [
            ({"type": "json_schema"}, MISSING, ".json_schema"),
            ({"type": "text", "json_schema": {"name": "x"}}, VALUE, ".json_schema"),
            ({"type": "text", "schema": {}}, VALUE, ".schema"),
            ({"type": "json_schema", "json_schema": {"name": "x"}, "schema": {}}, VALUE, ".schema"),
            ({"type": "json_object", "schema": 5}, TYPE, ".schema"),
            ({"type": "json_object", "schema": {"type": "nonsense"}}, VALUE, ".schema"),
            ({"type": "json_schema", "json_schema": {"name": "x", "schema": []}}, TYPE, ".json_schema.schema"),
            (
                {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}},
                VALUE,
                ".json_schema.schema",
            ),
            ({"type": "text", "mood": 1}, UNKNOWN, ".mood"),
            ({"type": "xml"}, VALUE, ".type"),
        ],
    ),
}
# Of OpenAI's endpoints.
STREAM: dict[str, Field] = {
    "stream": Field("", [False], [("true", TYPE), (1, TYPE)]),
    "include_metrics": switch("body.include_metrics"),
}
ONLY_OPENAI: dict[str, Field] = {
    # Each needs `stream`.
    "stream_options": Field("", [], [({}, VALUE), (True, TYPE), ({"include": True}, UNKNOWN, ".include")]),
    "return_progress": Field("", [False], [(True, VALUE), (1, TYPE)]),
}
WITHOUT_EFFECT = {name: anything() for name in WithoutEffect.model_fields}
# Fields of which only the value that matches this server is taken.
NEUTRAL = {
    "best_of": Field("", [1], [(2, VALUE)]),
    "no_stop_trim": Field("", [False], [(True, VALUE)]),
    "skip_special_tokens": Field("", [True], [(False, VALUE)]),
    "return_hidden_states": Field("", [False], [(True, VALUE)]),
}
NEUTRAL_IN_CHATS = {
    "add_generation_prompt": Field("", [True], [(False, VALUE)]),
    "continue_final_message": Field("", [False], [(True, VALUE)]),
    "include_reasoning": Field("", [True], [(False, VALUE)]),
    "separate_reasoning": Field("", [True], [(False, VALUE)]),
    "stream_reasoning": Field("", [True], [(False, VALUE)]),
}
_CHOICES = integer("body.n", 1, 16)
FIELDS: dict[str, Field] = {
    **SAMPLING,
    **MORE_SAMPLING,
    **MODEL,
    **CHAT,
    **STREAM,
    **ONLY_OPENAI,
    **WITHOUT_EFFECT,
    **NEUTRAL,
    **NEUTRAL_IN_CHATS,
    "n": _CHOICES,
    "store": anything(),
    # What no API has.
    "nonsense": Field("", [1]),
}


@dataclass(frozen=True)
class Api:
    """An endpoint that generates text."""

    path: str
    # A request that has an answer at once.
    body: Mapping[str, Any]
    # The fields of the table that it has.
    fields: frozenset[str]
    # Its own names for them; a dot is in front of a field of an object.
    names: Mapping[str, str] = field(default_factory=dict)
    # Its own rules for some of them.
    rules: Mapping[str, Field] = field(default_factory=dict)

    def rule(self, name: str) -> Field:
        return self.rules.get(name) or FIELDS[name]


def _without(rule: Field, *values: Any) -> Field:
    """A rule that does not refuse these values."""
    return replace(rule, refused=[case for case in rule.refused if case[0] not in values])


MESSAGES = [{"role": "user", "content": "say x"}]
RAW = "say x\n\x04"
_SHARED = frozenset({**SAMPLING, **MORE_SAMPLING, **MODEL})
_OPENAI = _SHARED | frozenset({**STREAM, **ONLY_OPENAI, **WITHOUT_EFFECT, **NEUTRAL, "n": 0})
_OF_OLLAMA = {
    **{name: f"options.{name}" for name in SAMPLING},
    "repetition_penalty": "options.repeat_penalty",
    "max_tokens": "options.num_predict",
}
_SEED, _EFFORT = SAMPLING["seed"], CHAT["reasoning_effort"]
_OLLAMA = Api(
    "/api/chat",
    {"messages": MESSAGES, "stream": False},
    frozenset({*SAMPLING, "model", "max_tokens", "stream", "logprobs"}),
    _OF_OLLAMA,
    {
        # Some clients write integers as 7.0. A limit of 0 or less is none.
        "max_tokens": Field(
            "max_tokens",
            [1, Means(7.0, 7), *(Means(given, DEFAULT_MAX_TOKENS) for given in (0, -1, -2))],
            [(1.5, TYPE), ("10", TYPE), (True, TYPE)],
        ),
        "top_k": replace(SAMPLING["top_k"], taken=[0, Means(40.0, 40), Means(-1, 0)]),
        "seed": replace(_SEED, taken=[0, Means(7.0, 7), Means(-1, None), Means(-2, 2**64 - 2)]),
        "stop": replace(
            SAMPLING["stop"],
            taken=[*SAMPLING["stop"].taken, []],
            refused=[case for case in SAMPLING["stop"].refused if case[0] != []],
        ),
        "model": Field("", ["demo", "demo:latest"], [("any", "model_not_found"), (5, TYPE), ("", VALUE)]),
    },
)
APIS: dict[str, Api] = {
    "own chat": Api(
        "/v1/chat",
        {"messages": MESSAGES},
        _SHARED | frozenset({**CHAT, **WITHOUT_EFFECT, "stream": 0, "n": 0, "store": 0}),
        rules={
            "n": replace(_CHOICES, taken=[1], refused=[(0, VALUE), (2, VALUE), ("1", TYPE)]),
            # The scripted model reads no effort. Other endpoints leave it out.
            "reasoning_effort": replace(_EFFORT, refused=[*_EFFORT.refused, ("high", VALUE)]),
        },
    ),
    "chat completions": Api(
        "/v1/chat/completions",
        {"messages": MESSAGES},
        _OPENAI | frozenset({**CHAT, **NEUTRAL_IN_CHATS, "store": 0}),
    ),
    "completions": Api(
        "/v1/completions",
        {"prompt": RAW},
        _OPENAI | {"logprobs"},
        rules={"logprobs": integer("top_logprobs", 0, 20)},
    ),
    "responses": Api(
        "/v1/responses",
        {"input": "say x", "store": False},
        _SHARED
        | frozenset({**STREAM, **WITHOUT_EFFECT})
        | {"reasoning_effort", "thinking_token_budget", "parallel_tool_calls", "chat_template_kwargs"}
        | {"stream_options", "store"},
        {
            "max_tokens": "max_output_tokens",
            "reasoning_effort": "reasoning.effort",
            "thinking_token_budget": "reasoning.max_tokens",
        },
        {
            "store": Field("", [True, False], [(1, TYPE)]),
            # The chat that a response becomes does not have it.
            "include_metrics": replace(STREAM["include_metrics"], effect=""),
            "metadata": Field(
                "",
                [{}, {"a": "x" * 512}],
                [
                    ({str(number): "x" for number in range(17)}, VALUE),
                    ({"a": "x" * 513}, VALUE, ".a"),
                    ({"a": 1}, TYPE, ".a"),
                    (5, TYPE),
                ],
            ),
        },
    ),
    "messages": Api(
        "/v1/messages",
        {"messages": MESSAGES, "max_tokens": DEFAULT_MAX_TOKENS},
        _SHARED | {"stream", "metadata", "service_tier"},
        {"stop": "stop_sequences"},
        {
            "temperature": number("sampling.temperature", 0.0, 1, -0.01, 1.01),
            # A limit above the context is reduced to what fits.
            "max_tokens": replace(_without(MODEL["max_tokens"], MAX_LENGTH + 1), may_be_null=False),
            "stop": Field(
                "body.stop_strings",
                [["b"], [], ["b" * 1024]],
                [
                    ([""], VALUE, "[0]"),
                    ([str(number) for number in range(65)], VALUE),
                    (["a", "b" * 1025], VALUE, "[1]"),
                    ("b", TYPE),
                    ([5], TYPE, "[0]"),
                ],
            ),
        },
    ),
    "ollama's chat": _OLLAMA,
    "ollama's generate": replace(_OLLAMA, path="/api/generate", body={"prompt": "say x", "stream": False}),
    "ollama's raw generate": replace(_OLLAMA, path="/api/generate", body={"prompt": RAW, "raw": True, "stream": False}),
}
assert {*RouterFields.model_fields, *ChatRouterFields.model_fields} == {*NEUTRAL, *NEUTRAL_IN_CHATS}
