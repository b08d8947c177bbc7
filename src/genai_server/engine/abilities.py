"""What a runner can do (`Abilities`), and the questions that the scheduler asks a runner (`PassRules`). A runner is the
part of an engine that runs the model; there are several kinds, for example for batches and for single sequences. The
scheduler and the admission of requests read this before they use a runner.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from genai_server.engine.scheduling.scheduler_output import UNSHARED, KvBudget, KvMemory
from genai_server.engine.sequence import Sequence


@dataclass(frozen=True)
class Abilities:
    """Capabilities and limits of a runner, the part of an engine that runs the model. The runner creates the object
    when it has loaded the model; it does not change afterwards.
    """

    # The runner's name in the API.
    name: str
    # Maximum number of sequences that one pass can decode.
    max_rows: int = 1
    # Whether one pass can read any numbers of tokens of several sequences, prompts and newest tokens together.
    mixes: bool = False
    # Whether a pass can read draft tokens (speculative decoding).
    drafts: bool = False
    # Whether the model returns a vector or a score for each text of a request, instead of continuing a prompt.
    pools: bool = False
    # Whether sequences may have LoRA adapters.
    adapters: bool = False
    # Whether the KV cache of ended sequences is kept for prompts that begin with the same tokens.
    caches_prefixes: bool = False
    # Whether every pass can be interrupted, not only one that reads a part of a single prompt.
    interrupts: bool = False
    # Whether passes run on the cores of the host, which the other processes of the server need as well.
    uses_host_cores: bool = True
    # Why the result for a token may be different in the last bits in different passes; "" if it is always the same.
    why_not_exact: str = ""
    # What the warm-up measured: the seconds of decoding passes by their numbers of tokens, and the seconds of one token
    # of a prompt, which are 0 if the warm-up read no prompt.
    tried_passes: Mapping[int, float] = field(default_factory=dict)
    tried_prompt_token: float = 0.0
    # The KV cache memory that the runner's sequences share.
    memory: KvMemory = UNSHARED


class PassRules(Protocol):
    """The methods of a runner (the part of an engine that runs the model) that the scheduler needs to decide what a
    forward pass reads.
    """

    abilities: Abilities

    def fit_chunk(self, sequence: Sequence, maximum: int) -> int:
        """Return how many unread prompt tokens of `sequence` the next pass should read if the pass has room for
        `maximum` tokens. The runner may choose fewer, to suit its kernels.

        The result is `maximum + 1` if a single token would otherwise be left for another pass.
        """
        ...

    def may_draft(self, sequence: Sequence) -> bool:
        """Return whether the next pass can read draft tokens for speculative decoding after the newest token of
        `sequence`.
        """
        ...

    def reserved(self, maximum: int) -> KvBudget:
        """Return the part of the KV cache that low-priority sequences must leave to the most recently used cached
        prefixes. At most `maximum` prefixes are counted, each of which has one slot.
        """
        ...
