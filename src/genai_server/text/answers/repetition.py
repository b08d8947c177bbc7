"""Detects answers that repeat the same tokens without end."""

from collections.abc import Sequence
from dataclasses import dataclass

# Tokens after which a rule that the request has not asked for is applied again.
_EVERY = 16


@dataclass(frozen=True)
class RepetitionRule:
    """The repetition that ends an answer: a sequence of tokens that occurs at least `min_count` times in a row.

    The sequence has `min_pattern` to `max_pattern` tokens, and all its occurrences together at least `min_tokens`.
    """

    # Length in tokens of what is repeated.
    min_pattern: int
    max_pattern: int
    min_count: int
    min_tokens: int = 0

    def applies(self, tokens: Sequence[int]) -> bool:
        """Whether a list of tokens ends with the repetition that this rule describes."""
        for pattern in range(self.min_pattern, self.max_pattern + 1):
            length = max(self.min_count * pattern, self.min_tokens)
            if length > len(tokens):
                return False
            # Most patterns differ at an end.
            fits_at_ends = tokens[-1] == tokens[-1 - pattern] and tokens[-length] == tokens[pattern - length]
            if fits_at_ends and tokens[pattern - length :] == tokens[-length:-pattern]:
                return True
        return False


# What ends thoughts and tool arguments, unless the request has a rule: no useful text repeats so much.
IN_THOUGHTS_AND_CALLS = RepetitionRule(1, 256, 8, min_tokens=512)


class RepetitionDetector:
    """Checks one answer for repetition while it is generated.

    With a rule, which a request may have, the whole answer is checked with this rule. Without one, only reasoning and
    tool calls are checked, with the default rule IN_THOUGHTS_AND_CALLS.
    """

    def __init__(self, rule: RepetitionRule | None) -> None:
        self._rule = rule or IN_THOUGHTS_AND_CALLS
        self._is_asked = rule is not None
        # What is watched, up to now.
        self._tokens: list[int] = []

    def repeats(self, token: int, *, is_within: bool) -> bool:
        """Add the next token of the answer and return whether the answer now repeats itself.

        `is_within` says that the token lies within reasoning or a tool call.
        """
        if not (self._is_asked or is_within):
            self._tokens.clear()
            return False
        self._tokens.append(token)
        if not self._is_asked and len(self._tokens) % _EVERY:
            return False
        return self._rule.applies(self._tokens)
