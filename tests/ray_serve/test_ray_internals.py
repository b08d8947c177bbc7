"""What is used of Ray without a public name: whether it is still there, and the router before a tree that fails."""

import asyncio
import inspect
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


def test_load_chooses_the_replica_without_a_prefix_tree(failing: Callable[[Exception], Any]) -> None:
    from ray.exceptions import ActorDiedError, ActorUnavailableError

    for error in (KeyError("a replica that has gone"), ActorDiedError(), ActorUnavailableError("it restarts", None)):
        assert asyncio.run(failing(error)._prefix_match_best_replicas(None, [])) == [[]]


def test_routed_request_succeeds_without_a_prefix_tree(failing: Callable[[Exception], Any]) -> None:
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


METHODS: dict[str, dict[str, list[str]]] = {
    "PrefixCacheAffinityRouter": {
        "_prefix_match_best_replicas": ["pending_request", "candidate_replicas"],
        "create_replica_wrapper": ["replica_info"],
        "on_request_routed": ["pending_request", "replica_id", "result"],
    },
    "RunningReplica": {"try_send_request": ["pr", "with_rejection"]},
    "ServeController": {"_register_shutdown_cleanup_actor": ["actor_handle"]},
    "DeploymentBroadcastResponse": {"_fetch_replica_results_async": []},
}
# Parameters that are given by name.
OPTIONS = {
    "PrefixCacheAffinityRouter.initialize_state": {"imbalanced_threshold", "do_eviction", "tree_actor"},
    "Deployment.options": {"version", "_internal"},
}


@pytest.fixture(scope="module")
def owners() -> dict[str, Any]:
    """Ray's classes."""
    from ray.llm._internal.serve.routing_policies.prefix_aware.prefix_aware_router import PrefixCacheAffinityRouter
    from ray.serve import Deployment
    from ray.serve._private.controller import ServeController
    from ray.serve.handle import DeploymentBroadcastResponse
    from ray.serve.request_router import RunningReplica

    classes = (PrefixCacheAffinityRouter, Deployment, ServeController, DeploymentBroadcastResponse, RunningReplica)
    return {one.__name__: one for one in classes}


@pytest.mark.parametrize("owner", METHODS)
def test_ray_has_the_methods_that_are_used(owners: dict[str, Any], owner: str) -> None:
    for name, parameters in METHODS[owner].items():
        method = getattr(owners[owner], name, None)
        assert method is not None, f"Ray's {owner}.{name} has gone, which ray_serve/ray_internals.py uses"
        found = list(inspect.signature(method).parameters)[1:]
        assert found == parameters, f"Ray's {owner}.{name} has other parameters than ray_serve/ray_internals.py expects"


@pytest.mark.parametrize("name", OPTIONS)
def test_ray_takes_the_options_that_are_given(owners: dict[str, Any], name: str) -> None:
    owner, _, method = name.partition(".")
    missing = OPTIONS[name] - inspect.signature(getattr(owners[owner], method)).parameters.keys()
    assert not missing, f"Ray's {name} no longer takes options that ray_serve gives"


def test_ray_has_the_attributes_that_are_read() -> None:
    from ray.serve._private.client import ServeControllerClient
    from ray.serve.request_router import RequestRouter, RunningReplica

    assert "http_config" in dir(ServeControllerClient), "where Serve's proxies listen is no longer known"
    source = inspect.getsource(RequestRouter.__init__)
    assert "self._deployment_id =" in source, (
        "a router no longer knows its deployment, which names the tree of prefixes"
    )
    assert isinstance(inspect.getattr_static(RunningReplica, "replica_id"), property), "a replica's id has moved"
