"""What a runner can do: read by the scheduler and by request admission before they ask a runner for anything."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from genai_server.engine.scheduling.scheduler_output import UNSHARED, KvBudget, KvMemory
from genai_server.engine.sequence import Sequence


@dataclass(frozen=True)
class Abilities:
    """Capabilities and limits of a runner. They are fixed once the runner's model is loaded."""

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
    """What the scheduler asks a runner when it composes a forward pass."""

    abilities: Abilities

    def fit_chunk(self, sequence: Sequence, maximum: int) -> int:
        """Number of unread prompt tokens to read in a pass of at most `maximum` tokens.

        The result exceeds `maximum` by one where a single token would otherwise be left for a pass of its own.
        """
        ...

    def may_draft(self, sequence: Sequence) -> bool:
        """Whether draft tokens for speculative decoding may follow the newest token of a sequence."""
        ...

    def reserved(self, maximum: int) -> KvBudget:
        """Part of the KV cache that low-priority sequences must leave free.

        That part holds the most recently used cached prefixes, at most `maximum` of them.
        """
        ...
