"""The request router of a model's deployment: Ray's own by prefixes, made safe for what it does not expect.

Imported by name in Serve's processes (docs/decisions/0055-ray-serve.md). Ray's public name for the router, in
`ray.serve.llm`, needs vLLM; the module behind that name needs nothing more than Serve.
"""

from typing import Any

from ray.llm._internal.serve.routing_policies.prefix_aware.prefix_aware_router import PrefixCacheAffinityRouter


class PrefixRouter(PrefixCacheAffinityRouter):
    """Sends a prompt to the replica that was sent the longest prefix of it, while the load is balanced."""

    async def _prefix_match_best_replicas(self, pending_request: Any, candidate_replicas: list[Any]) -> list[list[Any]]:
        """The replicas to choose from; an empty list leaves the choice to the power of two choices.

        The tree of prefixes outlives an ingress. After that it may name a replica that has gone, for which Ray's own
        method raises KeyError, and the request would wait for ever.
        """
        try:
            found: list[list[Any]] = await super()._prefix_match_best_replicas(pending_request, candidate_replicas)
        except KeyError:
            return [[]]
        return found
