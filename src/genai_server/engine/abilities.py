"""What a runner (the part of an engine that runs the model) can do. The scheduler and the admission of requests read
this before they use a runner.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from genai_server.engine.scheduling.scheduler_output import UNSHARED, KvBudget, KvMemory
from genai_server.engine.sequence import Sequence


@dataclass(frozen=True)
class Abilities:
    """Capabilities and limits of a runner, which do not change after its model is loaded."""

    # The runner's name in the API.
    name: str
    # Sequences that one pass can decode, at most.
    max_rows: int = 1
    # Whether a pass can read any number of tokens of any sequences.
    mixes: bool = False
    # Whether sequences may have drafts.
    drafts: bool = False
    # Whether it reads complete texts, and returns a vector or a score for each, in place of a prompt to continue.
    pools: bool = False
    # Whether sequences may have adapters.
    adapters: bool = False
    # Whether it keeps the prompts of ended sequences for later ones that begin alike.
    caches_prefixes: bool = False
    # Whether any pass can be interrupted.
    interrupts: bool = False
    # Whether its passes run on the cores that the processes of the server need, too.
    uses_host_cores: bool = True
    # Why a token's result may differ between passes in the last bits; "" if it is bitwise the same in any.
    why_not_exact: str = ""
    # The seconds of decoding passes at the start, by their number of tokens, and those for a token of a prompt; 0 if
    # none was read.
    tried_passes: Mapping[int, float] = field(default_factory=dict)
    tried_prompt_token: float = 0.0
    # The memory that its sequences share.
    memory: KvMemory = UNSHARED


class PassRules(Protocol):
    """Those methods of a runner by which the scheduler decides what a forward pass reads."""

    abilities: Abilities

    def fit_chunk(self, sequence: Sequence, maximum: int) -> int:
        """Number of unread prompt tokens of a sequence that the next pass should read if it has room for `maximum`
        tokens.

        The result is `maximum + 1` if a single token would otherwise be left for another pass.
        """
        ...

    def may_draft(self, sequence: Sequence) -> bool:
        """Whether draft tokens for speculative decoding may follow the newest token of a sequence."""
        ...

    def reserved(self, maximum: int) -> KvBudget:
        """Part of the KV cache that low-priority sequences must leave free: that of the most recently used cached
        prefixes, of at most `maximum` prefixes.
        """
        ...
