"""Prompts of the demo model."""

import random


def text(length: int, seed: int = 0) -> list[int]:
    """Random tokens."""
    chance = random.Random(f"{seed} {length}")
    return [chance.randrange(10, 1900) for _ in range(length)]
