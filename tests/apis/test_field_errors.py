"""A field with a wrong value is refused by each API in its format, with the client's name for the field."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests.running_server import RunningServer

MESSAGES = [{"role": "user", "content": "x"}]
SCHEMA = {"type": "nonsense"}
FORMAT = {"type": "json_schema", "name": "n", "schema": SCHEMA}


@dataclass(frozen=True)
class Api:
    """How the body of an endpoint has fields that all of them have; None for a field that it has not, or ignores."""

    prompt: str
    temperature: str = "temperature"
    max_tokens: str = "max_tokens"
    device: str | None = "device"
    nonsense: str | None = "nonsense"
    # The field that has the format, its value for a schema, and the schema's name in an error.
    schema: tuple[str, Any, str] = ("structured_outputs", {"json": SCHEMA}, "structured_outputs.json")
    more: dict[str, Any] = field(default_factory=dict)


OPENAI_FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
OLLAMA = Api("messages", "options.temperature", "options.num_predict", None, None, ("format", SCHEMA, "format"))
APIS = {
    "/v1/chat": Api("messages"),
    "/v1/chat/completions": Api(
        "messages", schema=("response_format", OPENAI_FORMAT, "response_format.json_schema.schema")
    ),
    "/v1/completions": Api("prompt"),
    "/v1/responses": Api(
        "input", max_tokens="max_output_tokens", schema=("text", {"format": FORMAT}, "text.format.schema")
    ),
    "/v1/messages": Api(
        "messages",
        schema=(
            "output_config",
            {"format": {"type": "json_schema", "schema": SCHEMA}},
            "output_config.format.schema",
        ),
        more={"max_tokens": 5},
    ),
    "/api/chat": OLLAMA,
    "/api/generate": replace(OLLAMA, prompt="prompt"),
}
# A field, a value that is wrong, the error's code, and words of its message.
CASES: list[tuple[str, Any, str, str]] = [
    ("temperature", 9, "invalid_value", "; given 9"),
    ("temperature", -0.5, "invalid_value", "must be at least 0.0; given -0.5"),
    ("temperature", "warm", "invalid_type", 'must be a number; given "warm"'),
    ("max_tokens", 1.5, "invalid_type", "must be an integer; given 1.5"),
    ("device", "cuda", "invalid_value", 'must be one of: scripted:0, scripted:1; given "cuda"'),
    ("nonsense", 1, "unknown_parameter", "is not a field of this endpoint"),
    ("schema", SCHEMA, "invalid_value", 'given "nonsense"'),
    ("too long", "x" * 3000, "context_length_exceeded", "2000"),
]


def _body(api: Api, name: str, value: Any) -> dict[str, Any]:
    """A body in which the field of this name has a value."""
    outer, _, inner = name.partition(".")
    return {
        api.prompt: MESSAGES if api.prompt == "messages" else "x",
        **api.more,
        outer: {inner: value} if inner else value,
    }


@pytest.mark.parametrize(
    ("path", "case"),
    [
        pytest.param(path, case, id=f"{path} {case[0]} {str(case[1])[:8]}")
        for path, api in APIS.items()
        for case in CASES
        if getattr(api, case[0], "") is not None
    ],
)
def test_a_wrong_value_is_refused_with_the_clients_name_of_its_field(
    scripted: RunningServer, path: str, case: tuple[str, Any, str, str]
) -> None:
    api, (which, value, code, words) = APIS[path], case
    if which == "too long":
        name = api.prompt
        body = _body(api, name, [{"role": "user", "content": value}] if name == "messages" else value)
    elif which == "schema":
        outer, given, name = api.schema
        body = _body(api, outer, given)
    else:
        name = getattr(api, which)
        body = _body(api, name, value)
    response = scripted.client.post(path, json=body)
    answer = response.json()
    assert response.status_code == 400, answer
    if path.startswith("/api/"):
        message = answer["error"]
        assert list(answer) == ["error"]
    elif path == "/v1/messages":
        message = answer["error"]["message"]
        assert (answer["type"], answer["error"]["type"]) == ("error", "invalid_request_error")
        assert answer["error"]["details"] == {"error_code": code}
    else:
        message = answer["error"]["message"]
        found = {key: answer["error"][key] for key in ("type", "param", "code")}
        assert found == {"type": "invalid_request_error", "param": name, "code": code}
    assert words in message
    if which != "too long":  # of which each API has words of its own
        assert message.startswith(f"{name} ")
