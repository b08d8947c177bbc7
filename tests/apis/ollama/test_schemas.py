"""Which bodies of Ollama's API are accepted, and the names of refused fields."""

import math
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from genai_server.apis.ollama.schemas import EmbedRequest, GenerateRequest, PullRequest, nanoseconds, seconds
from genai_server.apis.ollama.schemas import OllamaChatRequest as ChatRequest

HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "f"}}


def _calling(arguments: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": arguments}}]}


@pytest.mark.parametrize(
    ("model", "given"),
    [
        (ChatRequest, {}),
        (ChatRequest, {"messages": []}),
        (ChatRequest, {"messages": [{"role": "User", "content": "x", "images": []}]}),
        (ChatRequest, {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "add"}}]}]}),
        (
            ChatRequest,
            {"messages": HELLO, "options": {"seed": 1.0, "num_predict": -2, "top_k": 40.0, "stop": ["a"] * 64}},
        ),
        (ChatRequest, {"messages": HELLO, "format": "", "think": "max", "keep_alive": "5m", "stream": False}),
        (ChatRequest, {"messages": HELLO, "options": {"repeat_last_n": 64}}),
        (ChatRequest, {"messages": HELLO, "options": {"repeat_last_n": -1, "repeat_penalty": 1.1, "typical_p": 1}}),
        (GenerateRequest, {"prompt": "x", "template": "", "context": [], "format": {"type": "object"}}),
        (GenerateRequest, {"prompt": "x", "raw": True, "system": "", "think": False}),
        (EmbedRequest, {"input": ["a", "b"], "truncate": True}),
        (ChatRequest, {"messages": [{"role": "developer", "content": "x"}], "think": "none", "temperature": 1}),
        *((ChatRequest, {"messages": [_calling(given)]}) for given in ('{"a', "", [1], 5, True, None, {"a": math.nan})),
        (ChatRequest, {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "a b!"}}]}]}),
        (ChatRequest, {"messages": HELLO, "tools": [TOOL], "tool_choice": {"type": "function", "name": "f"}}),
        (PullRequest, {"name": "org/name", "insecure": False}),
    ],
)
def test_fields_of_ollamas_clients_are_accepted(model: type[BaseModel], given: dict[str, Any]) -> None:
    model.model_validate(given)


@pytest.mark.parametrize(
    ("model", "given", "named"),
    [
        (ChatRequest, {"messages": HELLO, "nonsense": 1}, "nonsense"),
        (ChatRequest, {"messages": [{"role": "robot"}]}, "role"),
        (ChatRequest, {"messages": [{"role": "user", "images": [5]}]}, "images"),
        (ChatRequest, {"messages": [{"role": "user", "images": [""]}]}, "images"),
        (ChatRequest, {"messages": [{"role": "user", "tool_calls": [{"function": {"name": "a"}}]}]}, "tool_calls"),
        (ChatRequest, {"messages": [_calling({"a": "\ud800"})]}, "arguments"),
        (ChatRequest, {"messages": [_calling("\ud800")]}, "arguments"),
        (ChatRequest, {"messages": HELLO, "tool_choice": "required"}, "tool_choice"),
        (ChatRequest, {"messages": HELLO, "tools": [TOOL], "tool_choice": {"type": "function"}}, "tool_choice"),
        (ChatRequest, {"messages": HELLO, "tools": [TOOL], "tool_choice": "always"}, "tool_choice"),
        (ChatRequest, {"temperature": 2.5}, "temperature"),
        (ChatRequest, {"options": {"num_ctx": 4096}}, "num_ctx"),
        (ChatRequest, {"options": {"typical_p": 0.7}}, "typical_p"),
        (ChatRequest, {"options": {"temperature": 2.5}}, "temperature"),
        (ChatRequest, {"options": {"seed": 1.5}}, "seed"),
        (ChatRequest, {"options": {"repeat_last_n": -2}}, "repeat_last_n"),
        (ChatRequest, {"format": "xml"}, "format"),
        (ChatRequest, {"think": "hard"}, "think"),
        (ChatRequest, {"keep_alive": "soon"}, "keep_alive"),
        (ChatRequest, {"truncate": True}, "truncate"),
        (ChatRequest, {"top_logprobs": 2}, "top_logprobs"),
        (GenerateRequest, {"prompt": "x", "template": "{{ .Prompt }}"}, "template"),
        (GenerateRequest, {"prompt": "x", "context": [1]}, "context"),
        (GenerateRequest, {"prompt": "x", "raw": True, "system": "y"}, "system"),
        (GenerateRequest, {"prompt": "x", "suffix": "y", "think": True}, "think"),
        (PullRequest, {"model": "org/name", "insecure": True}, "insecure"),
    ],
)
def test_invalid_field_is_refused_by_name(model: type[BaseModel], given: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError) as refused:
        model.model_validate(given)
    (first, *_) = refused.value.errors()
    assert named in (*first["loc"], first.get("ctx", {}).get("field"))


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (0, 0),
        (300, 300),
        (1.5, 1.5),
        ("0", 0),
        ("5m", 300),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("250ms", 0.25),
        ("+2s", 2),
        (-1, math.inf),
        ("-1m", math.inf),
    ],
)
def test_a_number_is_seconds_and_a_text_has_gos_units(given: float | str, found: float) -> None:
    assert seconds(given) == pytest.approx(found)


@pytest.mark.parametrize("given", ["", "5", "m", "5 m", "5x", "1h-30m", "infinity", "٥m"])
def test_another_text_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match="5m"):
        seconds(given)


def test_a_duration_is_never_zero_because_clients_divide_by_it() -> None:
    assert (nanoseconds(0), nanoseconds(1.5)) == (1, 1_500_000_000)
