"""The request router, before a tree of prefixes that fails."""

import asyncio
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="Ray Serve is not installed (extra ray)")


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[Exception], Any]:
    """Makes a router whose tree raises an error."""
    from ray.llm._internal.serve.routing_policies.prefix_aware.prefix_aware_router import PrefixCacheAffinityRouter

    from genai_server.cli.deploy.request_router import PrefixRouter

    def router(error: Exception) -> PrefixRouter:
        def fail(*_: Any) -> None:
            raise error

        monkeypatch.setattr(PrefixCacheAffinityRouter, "_prefix_match_best_replicas", fail)
        monkeypatch.setattr(PrefixCacheAffinityRouter, "on_request_routed", fail)
        return object.__new__(PrefixRouter)

    return router


def test_without_a_tree_the_load_chooses_the_replica(failing: Callable[[Exception], Any]) -> None:
    from ray.exceptions import ActorDiedError, ActorUnavailableError

    for error in (KeyError("a replica that has gone"), ActorDiedError(), ActorUnavailableError("it restarts", None)):
        assert asyncio.run(failing(error)._prefix_match_best_replicas(None, [])) == [[]]


def test_a_request_that_a_replica_has_does_not_fail_without_a_tree(failing: Callable[[Exception], Any]) -> None:
    from ray.exceptions import ActorUnavailableError

    failing(ActorUnavailableError("it restarts", None)).on_request_routed(None, None, None)


def test_the_tree_needs_no_core_and_no_node_that_may_leave() -> None:
    from ray._common.constants import HEAD_NODE_RESOURCE_NAME

    from genai_server.cli.deploy.request_router import TREE_OPTIONS

    assert TREE_OPTIONS["num_cpus"] == 0
    assert HEAD_NODE_RESOURCE_NAME in TREE_OPTIONS["resources"]
