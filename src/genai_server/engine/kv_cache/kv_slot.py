"""One row of the key-value buffers: the tokens that lie in it, and the sequence that has it."""

from dataclasses import dataclass, field

from genai_server.engine.kv_cache.row_states import Saved


@dataclass
class Slot:
    """One row of the key-value buffers."""

    # The row in the buffers.
    index: int
    # The tokens whose keys and values lie in the slot. A list is only appended to. Every other change makes a new one,
    # before the keys and values change.
    tokens: list[int] = field(default_factory=list)
    # Only prompts of the same salt may reuse the tokens.
    salt: str | None = None
    # The name of the adapter with which the tokens were read. Its content is in the salt.
    adapter: str | None = None
    # Whether the keys have the cosines and sines for long rows. Only prompts which need the same may reuse the tokens.
    is_long: bool = False
    # The running sequence that has the slot; None for an idle slot.
    sequence: int | None = None
    # Tokens behind these that the next pass may write.
    num_coming: int = 0
    # Copies of the states at some of the lengths that the tokens had.
    checkpoints: dict[int, Saved] = field(default_factory=dict)
    # Tokens that another slot begins with, too; more prompts may begin with these. Their checkpoint is always kept.
    num_common: int = 0
    # The sequence that has it, or had it last.
    owner: int | None = None
    # The tenant of that; None for one of the background, whose prefixes are in nobody's share.
    tenant: str | None = ""
    # Orders slots by the last release or reuse of their tokens; 0 for a slot that was never used or was emptied.
    used: int = 0
    # The clock's time of that.
    used_at: float = 0.0

    @property
    def background(self) -> bool:
        """Whether the sequence that has it, or had it last, is of the background."""
        return self.tenant is None

    def empty(self) -> None:
        """Forget the tokens."""
        self.tokens, self.used, self.owner = [], 0, None
        self.checkpoints = {}

    def begins_with(self, other: "Slot") -> bool:
        """Whether the slot can serve every prompt that the other can."""
        same = (self.salt, self.is_long) == (other.salt, other.is_long)
        return same and self.tokens[: len(other.tokens)] == other.tokens
