"""The router prefers the engine whose prefix cache holds most of a prompt, unless it has too much other work."""

from typing import Any, cast

import pytest

from genai_server.engine_client.client import MAX_MORE_REQUESTS, TOKENS_PER_REQUEST, EngineClient, Router
from genai_server.messages.engine_protocol import CachedPrefixes, Capacity, Load
from genai_server.messages.generation_request import ModelInfo, Sampling
from genai_server.messages.prefix_cache import BLOCK_TOKENS, prefix_digests
from genai_server.messages.server_status import NO_SERVER

# A prompt that is worth as much as two requests and a half.
PROMPT = list(range(5 * TOKENS_PER_REQUEST // 2))
BLOCKS = list(prefix_digests(PROMPT, "key", None))


@pytest.fixture
def router() -> Router:
    """Three idle engines without anything in their caches."""
    router = Router(["a", "b", "c"], lambda: NO_SERVER)
    for client in router.engines.values():
        client.model, client._writer = ModelInfo(8, 9, [], Sampling()), cast(Any, object())
    return router


def picked(router: Router, **fields: Any) -> str:
    return router.pick(None, prefix=iter(BLOCKS), **fields)[0].device


def hold(engine: EngineClient, num_tokens: int) -> None:
    engine._receive(CachedPrefixes(BLOCKS[: num_tokens // BLOCK_TOKENS], []))


def test_the_longest_cached_prefix_wins(router: Router) -> None:
    a, b, c = router.engines.values()
    assert picked(router) == "a"
    hold(b, 3 * BLOCK_TOKENS)
    assert picked(router) == "b"
    hold(c, 4 * BLOCK_TOKENS)
    assert picked(router) == "c"
    c._receive(CachedPrefixes([], BLOCKS[2:4]))
    assert picked(router) == "b"
    a._receive(CachedPrefixes(BLOCKS[10:], []))  # a prompt does not begin with these
    assert picked(router) == "b"
    b._forget()  # as if it was lost
    assert b.cached_blocks == set()


def test_work_is_weighed_against_cached_tokens(router: Router) -> None:
    a, b, c = router.engines.values()
    hold(c, len(PROMPT))
    c.load = Load(others=2)
    assert picked(router) == "c"
    c.load = Load(others=3)
    assert picked(router) == "a"
    a.load, b.load = Load(others=1), Load(others=1)
    assert picked(router) == "c"


def test_what_many_prompts_begin_with_is_read_on_a_second_engine(router: Router) -> None:
    shared = list(prefix_digests(list(range((MAX_MORE_REQUESTS + 5) * TOKENS_PER_REQUEST)), None, None))
    a, b, c = router.engines.values()
    b._receive(CachedPrefixes(shared, []))
    for work, device in ((MAX_MORE_REQUESTS - 1, "b"), (MAX_MORE_REQUESTS + 1, "a")):
        b.load = Load(others=work)
        assert router.pick(None, prefix=iter(shared))[0] is router.engines[device]
    a._receive(CachedPrefixes(shared[: len(shared) // 2], []))
    assert router.pick(None, prefix=iter(shared))[0] is a
    assert router.pick(None, prefix=iter([*shared, b"unknown"]))[0] is a


@pytest.mark.parametrize("load", [Load(terminated=True), Load(present={"": 2}, capacity=Capacity(1, 1))])
def test_a_terminated_or_full_engine_is_not_preferred(router: Router, load: Load) -> None:
    engine = router.engines["b"]
    hold(engine, len(PROMPT))
    assert picked(router) == "b"
    engine.load = load
    assert picked(router) == "a"


def test_low_priority_work_counts_for_low_priority_requests_only(router: Router) -> None:
    engine = router.engines["b"]
    hold(engine, len(PROMPT))
    engine.load = Load(low_priority_running=3)
    assert picked(router) == "b"
    assert picked(router, low_priority=True) == "a"


def test_a_named_engine_is_taken_without_any_digest(router: Router) -> None:
    digests = iter(BLOCKS)
    hold(router.engines["b"], len(PROMPT))
    assert router.pick("c", prefix=digests)[0].device == "c"
    for name in ("a", "b"):
        router.engines[name]._writer = None
    assert router.pick(None, prefix=digests)[0].device == "c"
    assert next(digests) == BLOCKS[0]
