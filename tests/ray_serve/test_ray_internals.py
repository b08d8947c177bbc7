"""What is used of Ray without a public name: the router before a tree that fails, and the replica of a result."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("ray_serve")


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[Exception], Any]:
    """Makes a router whose tree raises an error."""
    from ray.llm._internal.serve.routing_policies.prefix_aware.prefix_aware_router import PrefixCacheAffinityRouter

    from genai_server.ray_serve.ray_internals import PrefixRouter

    def router(error: Exception) -> PrefixRouter:
        def fail(*_: Any) -> None:
            raise error

        monkeypatch.setattr(PrefixCacheAffinityRouter, "_prefix_match_best_replicas", fail)
        monkeypatch.setattr(PrefixCacheAffinityRouter, "on_request_routed", fail)
        return object.__new__(PrefixRouter)

    return router


def test_requests_are_routed_by_load_without_a_prefix_tree(failing: Callable[[Exception], Any]) -> None:
    from ray.exceptions import ActorDiedError, ActorUnavailableError

    for error in (KeyError("a replica that has gone"), ActorDiedError(), ActorUnavailableError("it restarts", None)):
        assert asyncio.run(failing(error)._prefix_match_best_replicas(None, [])) == [[]]
    from ray.exceptions import ActorUnavailableError

    failing(ActorUnavailableError("it restarts", None)).on_request_routed(None, None, None)


def test_the_tree_needs_no_core_and_no_node_that_may_leave() -> None:
    from ray._common.constants import HEAD_NODE_RESOURCE_NAME

    from genai_server.ray_serve.ray_internals import TREE_OPTIONS

    assert TREE_OPTIONS["num_cpus"] == 0
    assert HEAD_NODE_RESOURCE_NAME in TREE_OPTIONS["resources"]


def test_a_result_says_which_replica_it_is_of(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.serve.request_router import RunningReplica

    from genai_server.ray_serve.ray_internals import PrefixRouter

    monkeypatch.setattr(RunningReplica, "__init__", lambda self, info: setattr(self, "_replica_info", info))
    monkeypatch.setattr(RunningReplica, "try_send_request", lambda *_: SimpleNamespace())
    info = SimpleNamespace(replica_id=SimpleNamespace(unique_id="abc"))
    replica = object.__new__(PrefixRouter).create_replica_wrapper(info)
    assert replica.try_send_request(None, with_rejection=False).replica == "abc"
