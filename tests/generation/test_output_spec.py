"""Output specs are built once for equal tools, formats and models, and separately where any of these differ."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest

from genai_server.errors import InvalidField
from genai_server.generation import output_spec
from genai_server.generation.output_spec import CheckedSpecs, OutputSpec, chat_output_spec
from genai_server.generation.parameters.chat_messages import ChatParameters
from genai_server.grammar_checker.checker import GrammarChecker
from genai_server.messages.supervisor_protocol import TaskOwner
from genai_server.text.codec import TextCodec, load_text_codec
from genai_server.workers.pool import WorkerLimits, WorkerPool
from genai_server.workers.tasks import Requester
from tests.running_server import DEMO, PATIENCE

pytestmark = pytest.mark.anyio

Made = list[ChatParameters]
ALICE, BOB = (Requester(TaskOwner(name)) for name in ("alice", "bob"))


@pytest.fixture(scope="module")
def codec() -> TextCodec:
    return load_text_codec(DEMO, "cpu")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    """The bodies for which a spec was built."""
    found: Made = []

    def counted(body: ChatParameters, *arguments: Any, **options: Any) -> OutputSpec:
        found.append(body)
        return chat_output_spec(body, *arguments, **options)

    monkeypatch.setattr(output_spec, "chat_output_spec", counted)
    yield found


def _tool(name: str = "now", **schema: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", **schema}}}


def _body(**fields: Any) -> ChatParameters:
    return ChatParameters.model_validate({"messages": [{"role": "user", "content": "Hello!"}], **fields})


async def _specs(
    codec: TextCodec, *bodies: ChatParameters, requesters: Sequence[Requester] = (ALICE,)
) -> list[OutputSpec]:
    """The specs of these bodies, in order, each for all requesters."""
    with closing(WorkerPool(WorkerLimits())) as pool:
        specs = CheckedSpecs(GrammarChecker(pool, timeout=PATIENCE), best_effort=True)
        return [await specs.of(body, codec, [1], requester) for body in bodies for requester in requesters]


async def test_the_same_tools_make_one_grammar_whatever_else_differs(codec: TextCodec, made: Made) -> None:
    first, second = await _specs(codec, _body(tools=[_tool()]), _body(tools=[_tool()], temperature=0.5, max_tokens=3))
    assert first.grammar is not None
    assert (first, len(made)) == (second, 1)


@pytest.mark.parametrize(
    "other",
    [
        {"tools": [_tool("later")]},
        {"tools": [_tool(properties={"a": {"const": None}})]},
        {"tools": [_tool(properties={"a": {"const": float("nan")}})]},
        {"tools": [_tool(properties={"a": {"const": 1.0}})]},
        {"tools": [_tool()], "tool_choice": "required"},
        {"tools": [_tool()], "parallel_tool_calls": False},
        {"tools": [_tool()], "response_format": {"type": "json_object"}},
        {"tools": [_tool()], "structured_outputs": {"regex": "a+"}},
    ],
)
async def test_different_grammar_inputs_are_not_shared(codec: TextCodec, made: Made, other: dict[str, Any]) -> None:
    base = {"tools": [_tool(properties={"a": {"const": 1}})]}
    await _specs(codec, _body(**base), _body(tools=[_tool()]), _body(**other))
    assert len(made) == 3


async def test_ignored_keywords_are_reported_each_time(codec: TextCodec, made: Made) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    body = _body(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
    first, second = await _specs(codec, body, body)
    assert first.left_out == second.left_out == (("response_format.json_schema.schema", ": uniqueItems"),)
    assert len(made) == 1


async def test_a_grammar_that_does_not_compile_is_refused_each_time(codec: TextCodec) -> None:
    with closing(WorkerPool(WorkerLimits())) as pool:
        specs = CheckedSpecs(GrammarChecker(pool, timeout=PATIENCE), best_effort=True)
        for _ in range(2):
            with pytest.raises(InvalidField, match="structured_outputs.regex"):
                await specs.of(_body(structured_outputs={"regex": "("}), codec, [1], ALICE)


async def test_the_last_used_are_kept(codec: TextCodec, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_spec, "_MAX_CACHED", 2)
    a, b, c = (_body(tools=[_tool(name)]) for name in "abc")
    await _specs(codec, a, b, a, c, a, b)
    assert made == [a, b, c, b]


async def test_keys_share_no_specs(codec: TextCodec, made: Made) -> None:
    await _specs(codec, *[_body(tools=[_tool()])] * 2, requesters=[ALICE, BOB])
    assert len(made) == 2


async def test_unconstrained_chat_is_not_cached(codec: TextCodec, made: Made) -> None:
    assert [spec.constraint for spec in await _specs(codec, _body(), _body())] == [None, None]
    assert len(made) == 2
