"""All that is used of Ray without a public name. A new version of Ray may change each of it.

The request router is imported by name in Serve's processes (docs/decisions/0055-ray-serve.md). Its public name, in
`ray.serve.llm`, needs vLLM; the module behind that name needs nothing more than Serve.
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
    """A deployment with these options. Deploying it again with the same version restarts no replica."""
    return deployment.options(version=version, _internal=True, **options)


def http_config() -> Any:
    """Where Serve's proxies listen: with the options with which they were first started."""
    return _get_global_client().http_config


async def replica_results(broadcast: Any) -> Sequence[Any]:
    """The result of each replica of a broadcast, to be awaited one by one.

    Serve's own method gives none if one is missing.
    Raises DeploymentUnavailableError.
    """
    results: Sequence[Any] = await broadcast._fetch_replica_results_async()
    return results


class _NamedReplica(RunningReplica):
    """Says of each result which replica it is of: of a silent one nothing else does."""

    def try_send_request(self, pr: Any, with_rejection: bool) -> Any:
        result = super().try_send_request(pr, with_rejection)
        result.replica = self.replica_id.unique_id
        return result


class PrefixRouter(PrefixCacheAffinityRouter):
    """Sends a prompt to the replica that was sent the longest prefix of it, while the load is balanced.

    Ray's own router by prefixes, made safe for what it does not expect.
    """

    def initialize_state(self, **options: Any) -> None:
        """Make the tree of prefixes, or find that of an earlier ingress."""
        deployment = self._deployment_id
        name = f"prefixes of {deployment.app_name} {deployment.name}"
        tree = PrefixTreeActor.options(name=name, namespace=SERVE_NAMESPACE, **TREE_OPTIONS).remote()
        controller = ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)
        ray.get(controller._register_shutdown_cleanup_actor.remote(tree))
        super().initialize_state(**options, tree_actor=tree)

    def create_replica_wrapper(self, replica_info: Any) -> RunningReplica:
        """What sends requests to a replica."""
        return _NamedReplica(replica_info)

    async def _prefix_match_best_replicas(self, pending_request: Any, candidate_replicas: list[Any]) -> list[list[Any]]:
        """The replicas to choose from; an empty list leaves the choice to the power of two choices.

        The tree of prefixes outlives an ingress, and may then name a replica that has gone. For that one Ray's own
        method raises KeyError, and while the tree restarts RayActorError. Either would leave the request waiting.
        """
        try:
            found: list[list[Any]] = await super()._prefix_match_best_replicas(pending_request, candidate_replicas)
        except (KeyError, RayActorError):
            return [[]]
        return found

    def on_request_routed(self, pending_request: Any, replica_id: Any, result: Any) -> None:
        """Note the prompt in the tree, unless that restarts: the replica has the request already."""
        with suppress(RayActorError):
            super().on_request_routed(pending_request, replica_id, result)
