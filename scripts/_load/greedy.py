"""Greedy answers token by token, and where two of them differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from os.path import commonprefix
from typing import Any

from .step_results import Broken, Figures

# A token that leads the second by so little, in natural logarithms, may change places with it by rounding.
_NEAR = 0.25


@dataclass(frozen=True)
class Greedy:
    """An answer, its tokens, and by how much each one's log probability is above the next token's. There are no tokens
    where the device has no log probabilities.
    """

    text: str
    tokens: Sequence[str]
    leads: Sequence[float]

    @classmethod
    def read(cls, choice: dict[str, Any]) -> Greedy:
        """A choice of /v1/chat/completions, with two `top_logprobs` or without any."""
        entries = (choice.get("logprobs") or {}).get("content") or ()
        best = [sorted((top["logprob"] for top in entry["top_logprobs"]), reverse=True) for entry in entries]
        leads = [pair[0] - pair[1] if len(pair) > 1 else 0.0 for pair in best]
        return cls(choice["message"]["content"] or "", [entry["token"] for entry in entries], leads)

    def first_difference(self, other: Greedy) -> int | None:
        """The index of the first of these tokens that the other answer does not have; None without such a token."""
        if self.tokens and other.tokens:
            pairs = zip(self.tokens, other.tokens, strict=False)
            same = next((index for index, (one, two) in enumerate(pairs) if one != two), None)
            is_longer = len(self.tokens) != len(other.tokens)
            return min(len(self.tokens), len(other.tokens)) if same is None and is_longer else same
        if self.text == other.text:
            return None
        common = len(commonprefix([self.text, other.text]))
        return sum(end <= common for end in accumulate(map(len, self.tokens)))


def compared(reference: Sequence[Greedy], found: Sequence[Greedy], name: str) -> Figures:
    """The first differing token of each answer and its lead in the reference, whose name is given.

    Raises Broken if a difference is no rounding.
    """
    first = [one.first_difference(other) for one, other in zip(reference, found, strict=True)]
    at = {number: index for number, index in enumerate(first) if index is not None}
    leads = [reference[number].leads[index] for number, index in at.items() if index < len(reference[number].leads)]
    figures: Figures = {"equal": len(first) - len(at), "answers": len(first), "compared_with": name}
    if not at:
        return {**figures, "message": f"{len(first)} answers equal {name}"}
    figures |= {"first_difference": min(at.values()), "differences": at, "largest_lead": max(leads, default=0.0)}
    message = f"{len(at)} of {len(first)} answers differ from {name}, first at token {min(at.values())}"
    if figures["largest_lead"] > _NEAR or len(leads) < len(at):
        raise Broken(f"{message}, by more than rounding", figures)
    return {**figures, "message": f"{message}, where two tokens are about equally likely"}
