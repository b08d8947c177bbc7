"""Fields of requests: what each API makes of each value, and how it refuses others, in its format and by its names.

The tables are in `tests/apis/fields.py` and `tests/apis/refusals.py`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from functools import reduce
from typing import Any

import httpx
import pytest

from genai_server.engine_client.in_flight import InFlight, TokenStream
from genai_server.generation import generate
from genai_server.http.leniency import IGNORED_HEADER
from genai_server.messages.generation_request import GenerationRequest, Sampling
from tests.apis.fields import (
    APIS,
    DEFAULT_MAX_TOKENS,
    FIELDS,
    MAX_LENGTH,
    MESSAGES,
    STATUSES,
    UNKNOWN,
    Api,
    Means,
)
from tests.apis.refusals import LEFT_OUT, PATCH, REFUSALS, TAKEN
from tests.running_server import SCRIPTED, RunningServer
from tests.server_here import run_here


class Asked(list[tuple[generate.Body, GenerationRequest]]):
    """What requests became: the chat or text completion, and the engine's request, of each answer."""


@pytest.fixture(scope="module")
def asked() -> Iterator[Asked]:
    """What the requests to servers of this process become."""
    found, bodies = Asked(), list[generate.Body]()
    to_request, submit = generate.to_generation_request, InFlight.submit

    def noted(body: Any, *arguments: Any, **options: Any) -> GenerationRequest:
        bodies.append(body)
        return to_request(body, *arguments, **options)

    async def submitted(
        self: InFlight, *requests: GenerationRequest, files: Sequence[object] = ()
    ) -> list[TokenStream]:
        found.extend((bodies[-1], request) for request in requests)
        return await submit(self, *requests, files=files)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generate, "to_generation_request", noted)
        patch.setattr(InFlight, "submit", submitted)
        yield found


@pytest.fixture(scope="module")
def lenient(asked: Asked, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    options = (*SCRIPTED, "--default-max-tokens", str(DEFAULT_MAX_TOKENS))
    with run_here(tmp_path_factory.mktemp("lenient"), *options) as server:
        yield server


def post(server: RunningServer, path: str, body: Mapping[str, Any]) -> httpx.Response:
    """Send a body, which may have values that are no JSON."""
    return server.client.post(path, content=json.dumps(body), headers={"content-type": "application/json"})


def with_field(body: Mapping[str, Any], name: str, value: Any) -> dict[str, Any]:
    """A body with a field; a dot in its name is in front of a field of an object."""
    changed = deepcopy(dict(body))
    *outer, last = name.split(".")
    reduce(lambda inner, one: inner.setdefault(one, {}), outer, changed)[last] = value
    return changed


def require_refusal(response: httpx.Response, path: str, code: str, param: str) -> None:
    """Fail unless a response has this error in the format of its API, whose sentence begins with the field."""
    answer = response.json()
    assert response.status_code == STATUSES.get(code, 400), answer
    error = answer["error"]
    message = error if path.startswith("/api/") else error["message"]
    if path.startswith("/api/"):
        assert list(answer) == ["error"]
    elif "/messages" in path:
        kind = "not_found_error" if response.status_code == 404 else "invalid_request_error"
        assert (answer["type"], error["type"], error["details"]) == ("error", kind, {"error_code": code})
    else:
        assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", code, param)
    assert message.startswith(param) or code in ("context_length_exceeded", "request_not_found")


def effect(asked: Asked, path: str) -> Any:
    """What the last request has at the path of an attribute."""
    body, request = asked[-1]
    inner = body if path.startswith("body.") else request
    return reduce(getattr, path.removeprefix("body.").split("."), inner)


def _pairs(*, known: bool) -> list[Any]:
    """APIs with the fields that they have, or that they do not have."""
    pairs = [(name, field) for name, api in APIS.items() for field in FIELDS if (field in api.fields) is known]
    return [pytest.param(*pair, id=" ".join(pair)) for pair in pairs]


@pytest.mark.parametrize(("name", "field"), _pairs(known=True))
def test_values_have_their_effect_or_are_refused(lenient: RunningServer, asked: Asked, name: str, field: str) -> None:
    api, rule = APIS[name], APIS[name].rule(field)
    own = api.names.get(field, field)
    for value in rule.taken:
        given, meant = (value.given, value.meant) if isinstance(value, Means) else (value, value)
        require_taken(lenient, asked, api, own, given)
        if rule.effect:
            found = effect(asked, rule.effect)
            assert meant(found) if callable(meant) else found == meant, (given, found)
    for given, code, *inner in rule.refused:
        response = post(lenient, api.path, with_field(api.body, own, given))
        require_refusal(response, api.path, code, own + "".join(inner))
    if rule.may_be_null and rule.effect:
        require_taken(lenient, asked, api, own, None)
        found = effect(asked, rule.effect)
        assert post(lenient, api.path, api.body).status_code == 200
        assert found == effect(asked, rule.effect)


def require_taken(server: RunningServer, asked: Asked, api: Api, field: str, given: Any) -> None:
    asked.clear()
    response = post(server, api.path, with_field(api.body, field, given))
    assert response.status_code == 200, (given, response.text)
    assert IGNORED_HEADER not in response.headers
    assert asked


@pytest.mark.parametrize(("name", "field"), _pairs(known=False))
def test_a_field_of_other_apis_is_refused_or_named(lenient: RunningServer, name: str, field: str) -> None:
    api, rule = APIS[name], FIELDS[field]
    value = rule.taken[0] if rule.taken else {}
    given = value.given if isinstance(value, Means) else value
    response = post(lenient, api.path, with_field(api.body, field, given))
    if api.path.startswith("/api/"):
        assert (response.status_code, response.headers[IGNORED_HEADER]) == (200, field)
    else:
        require_refusal(response, api.path, UNKNOWN, field)
    if field == "nonsense":
        response = post(lenient, api.path, with_field(api.body, field, None))
        assert response.status_code == (200 if api.path.startswith("/api/") else 400)


@pytest.mark.parametrize("name", APIS)
def test_a_request_without_fields_has_the_models_values(lenient: RunningServer, asked: Asked, name: str) -> None:
    asked.clear()
    assert post(lenient, APIS[name].path, APIS[name].body).status_code == 200
    ((body, request),) = asked
    # OpenAI's default outside of chats.
    assert request.max_tokens == (16 if name == "completions" else DEFAULT_MAX_TOKENS)
    assert request.sampling == Sampling()
    assert (request.ignore_eos, request.cache_prompt, request.exact, request.priority) == (False, True, False, 0)
    assert (request.top_logprobs, request.grammar, request.stop_token_ids) == (None, None, [])
    assert body.stop_strings == []


@pytest.mark.parametrize(
    ("path", "fields", "code", "param"),
    [
        pytest.param(path, *row, id=f"{path} {number} {row[2]}")
        for path, (_, rows) in REFUSALS.items()
        for number, row in enumerate(rows)
    ],
)
def test_what_one_endpoint_refuses(strict: RunningServer, path: str, fields: Any, code: str, param: str) -> None:
    response = post(strict, path, {**REFUSALS[path][0], **fields})
    if code == TAKEN:
        assert response.status_code == 200, response.text
    else:
        require_refusal(response, path, code, param)


@pytest.mark.parametrize(("path", "fields", "names"), LEFT_OUT)
def test_what_is_left_out_is_named_or_refused(
    lenient: RunningServer, strict: RunningServer, path: str, fields: dict[str, Any], names: str
) -> None:
    asked = {**REFUSALS[path][0], **fields}
    response = post(lenient, path, asked)
    assert response.status_code == 200, response.text
    assert response.headers.get(IGNORED_HEADER, "") == names
    if names:
        assert post(strict, path, asked).status_code == 400


@pytest.mark.parametrize("name", APIS)
def test_a_prompt_that_is_too_long_is_refused(lenient: RunningServer, name: str) -> None:
    api = APIS[name]
    place = next(field for field in ("messages", "prompt", "input") if field in api.body)
    long = "x" * (MAX_LENGTH + 1)
    content = [{**MESSAGES[0], "content": long}] if place == "messages" else long
    response = post(lenient, api.path, {**api.body, place: content})
    require_refusal(response, api.path, "context_length_exceeded", place)
    assert str(MAX_LENGTH) in response.text


# The sentence of each rule. Elsewhere, tests look at code and parameter.
SENTENCES: dict[str, list[tuple[dict[str, Any], str]]] = {
    "/v1/chat/completions": [
        ({"temperature": -0.5}, "temperature must be at least 0.0; given -0.5"),
        ({"temperature": 9}, "temperature must be at most 2.0; given 9"),
        ({"temperature": float("nan")}, "temperature must be a finite number; given "),
        ({"temperature": "warm"}, 'temperature must be a number; given "warm"'),
        ({"timeout": 0}, "timeout must be greater than 0"),
        ({"seed": 1.5}, "seed must be an integer; given 1.5"),
        ({"ignore_eos": 1}, "ignore_eos must be true or false; given 1"),
        ({"stop": []}, "stop must not be empty; given []"),
        ({"stop": ["x"] * 65}, "stop must have at most 64 elements, not 65; given "),
        ({"stop": "x" * 1025}, "stop must have at most 1024 characters; given "),
        ({"cache_salt": 5}, "cache_salt must be a string; given 5"),
        ({"tools": 5}, "tools must be a list; given 5"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs must be an object; given []"),
        ({"messages": [{"role": "robot", "content": "x"}]}, 'messages[0].role must be "system", "developer", '),
        ({"device": "cuda"}, 'device must be one of: scripted:0, scripted:1; given "cuda"'),
        ({"nonsense": 1}, "nonsense is not a field of this endpoint"),
        ({"messages": [{"content": "x"}]}, "messages[0].role is required"),
        ({"audio": {}}, "audio is not supported: omit it or set it to null"),
        ({"max_tokens": 2001}, "max_tokens must be at most 2000 (GENAI_MAX_LENGTH); given 2001"),
        ({"tools": [{"type": "x"}]}, "tools[0] must be a tool of type function or custom"),
        (
            {"tools": [{"type": "function", "function": {"name": "a b"}}]},
            "tools[0].function.name must match ^[a-zA-Z0-9_.-]{1,128}$",
        ),
        (
            {"stop_token_ids": [257]},
            "stop_token_ids must have token ids below 257, the model's vocabulary size; given 257",
        ),
        (
            {"prediction": {"type": "content", "content": "x" * 2001}},
            "prediction may have at most 2000 tokens (GENAI_MAX_LENGTH); given 2001",
        ),
        ({"top_logprobs": 1}, "top_logprobs is only allowed with logprobs: true"),
        ({"max_tokens": 5, "max_completion_tokens": 5}, "max_tokens cannot be combined with max_completion_tokens"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema is required with type json_schema"),
        (
            {"tools": [{"type": "function", "function": {"name": "f"}}] * 2},
            'tools must have unique function names, given "f" twice',
        ),
    ],
    "/v1/completions": [
        ({"suffix": "y"}, "suffix is not supported by this model: its tokenizer has no tokens such as "),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex must be a regular expression"),
    ],
    "/v1/responses": [
        (
            {"tools": [{**PATCH, "format": {"type": "grammar", "syntax": "lark", "definition": "start: NONE"}}]},
            'tools must have supported Lark grammars as their formats; that of "patch" is not: ',
        ),
    ],
    "/v1/messages": [
        (
            {"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]},
            "messages[0].content[0].source must be a source of type text or content: this server reads no files",
        ),
        (
            {"messages": [{"role": "user", "content": [{}]}]},
            "messages[0].content[0] must be a block of type text, image, document, thinking, redacted_thinking, "
            "tool_use, tool_result",
        ),
    ],
}


@pytest.mark.parametrize(
    ("path", "fields", "sentence"),
    [pytest.param(path, *pair, id=pair[1][:40]) for path, pairs in SENTENCES.items() for pair in pairs],
)
def test_each_rule_has_its_sentence(strict: RunningServer, path: str, fields: dict[str, Any], sentence: str) -> None:
    message = post(strict, path, {**REFUSALS[path][0], **fields}).json()["error"]["message"]
    assert message.startswith(sentence)
