"""One update from several batches side by side, each on a thread of its own.

Small matrices gain little from two threads on one operation, and lose much where another program holds one of the
cores; batches side by side do not wait for each other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Item = TypeVar("Item")


def update(
    parameters: Sequence[torch.nn.Parameter],
    batches: Sequence[Item],
    loss: Callable[[Item], tuple[torch.Tensor, Sequence[float]]],
    optimizers: Sequence[torch.optim.Optimizer],
    pool: ThreadPoolExecutor,
) -> list[float]:
    """Step along the sum of the batches' gradients; returns the sums of what `loss` returns besides the loss."""

    def gradients(batch: Item) -> tuple[Sequence[float], tuple[torch.Tensor, ...]]:
        value, shown = loss(batch)
        return shown, torch.autograd.grad(value, parameters)

    results = list(pool.map(gradients, batches))
    for parameter, *found in zip(parameters, *(found for _, found in results), strict=True):
        parameter.grad = functools.reduce(torch.add, found)
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    list(pool.map(lambda optimizer: optimizer.step(), optimizers))
    return [sum(values) for values in zip(*(shown for shown, _ in results), strict=True)]
