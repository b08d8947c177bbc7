"""All uses of Ray's private parts in this package, such as its prefix-aware request router. A new version of Ray may
change each of them.

Ray Serve's processes import the request router by name (docs/decisions/0055-ray-serve.md). Its public name, in
`ray.serve.llm`, needs vLLM; the module behind that name needs nothing more than Ray Serve.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayActorError
from ray.llm._internal.serve.routing_policies.prefix_aware.prefix_aware_router import PrefixCacheAffinityRouter
from ray.llm._internal.serve.routing_policies.prefix_aware.prefix_tree import PrefixTreeActor
from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE
from ray.serve.context import _get_global_client
from ray.serve.request_router import RunningReplica

# On the head node, which no autoscaler removes, and without a core, which a replica may need. Ray's default tree may be
# on any node. It starts only where a core is free, and the ingress waits for it.
TREE_OPTIONS: dict[str, Any] = {
    "num_cpus": 0,
    "resources": {"node:__internal_head__": 0.001},
    "max_restarts": -1,
    "lifetime": "detached",
    "get_if_exists": True,
}


def with_version(deployment: Any, version: str, **options: Any) -> Any:
    """Return a copy of a Ray Serve deployment with this version and these options. When it is deployed again with the
    same version, Ray Serve restarts no replica.
    """
    return deployment.options(version=version, _internal=True, **options)


def http_config() -> Any:
    """Return the options with which Ray Serve's proxies were first started, including host and port."""
    return _get_global_client().http_config


async def replica_results(broadcast: Any) -> Sequence[Any]:
    """Return the result of each replica of a broadcast, which the caller awaits one by one. `broadcast` is what Ray
    Serve's `DeploymentHandle.broadcast` returns.

    Ray Serve's own method returns nothing if one result is missing. Raises DeploymentUnavailableError.
    """
    results: Sequence[Any] = await broadcast._fetch_replica_results_async()
    return results


class _NamedReplica(RunningReplica):
    """Ray Serve's client of a running replica, which adds the replica's id to each result, so that a replica that does
    not answer can be named.
    """

    def try_send_request(self, pr: Any, with_rejection: bool) -> Any:
        result = super().try_send_request(pr, with_rejection)
        result.replica = self.replica_id.unique_id
        return result


class PrefixRouter(PrefixCacheAffinityRouter):
    """Ray Serve's request router for replicas of a model: sends a prompt to the replica that has received the longest
    prefix of the prompt, as long as the load is balanced.

    It is Ray's own prefix router with handling for errors that Ray's router does not expect.
    """

    def initialize_state(self, **options: Any) -> None:
        """Create the Ray actor that has the tree of prefixes, or find the actor that an earlier ingress has created.
        Called by Ray Serve.
        """
        deployment = self._deployment_id
        name = f"prefixes of {deployment.app_name} {deployment.name}"
        tree = PrefixTreeActor.options(name=name, namespace=SERVE_NAMESPACE, **TREE_OPTIONS).remote()
        controller = ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)
        ray.get(controller._register_shutdown_cleanup_actor.remote(tree))
        super().initialize_state(**options, tree_actor=tree)

    def create_replica_wrapper(self, replica_info: Any) -> RunningReplica:
        """Return the object by which requests are sent to a replica. Called by Ray Serve."""
        return _NamedReplica(replica_info)

    async def _prefix_match_best_replicas(self, pending_request: Any, candidate_replicas: list[Any]) -> list[list[Any]]:
        """Return the replicas among `candidate_replicas` that have received the longest prefix of the request's prompt.
        An empty list leaves the choice to Ray's rule for load (power of two choices).

        The tree of prefixes outlives an ingress, and may then name a replica that no longer exists. For that replica
        Ray's method raises KeyError, and while the tree restarts RayActorError. Either would leave the request waiting,
        so the result is empty.
        """
        try:
            ranked: list[list[Any]] = await super()._prefix_match_best_replicas(pending_request, candidate_replicas)
        except (KeyError, RayActorError):
            return [[]]
        return ranked

    def on_request_routed(self, pending_request: Any, replica_id: Any, result: Any) -> None:
        """Add the prompt of a request that was sent to a replica to the tree of prefixes. Does nothing while the tree
        restarts. Called by Ray Serve.
        """
        with suppress(RayActorError):
            super().on_request_routed(pending_request, replica_id, result)
