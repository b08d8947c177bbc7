"""Muon in 32 bits: PyTorch's computes in bfloat16, which processors without such units emulate slowly."""

from __future__ import annotations

from collections.abc import Iterable

import torch

_A, _B, _C = 3.4445, -4.775, 2.0315  # as PyTorch's
_ROUNDS = 5


class Muon(torch.optim.Optimizer):  # type: ignore[misc]
    """Momentum whose steps are made orthogonal, for matrices; a step is as large as one of AdamW."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter], *, lr: float, momentum: float, decay: float) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "decay": decay})

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["past"] = torch.zeros_like(parameter)
                past = state["past"].lerp_(parameter.grad, 1 - group["momentum"])
                step = _orthogonal(parameter.grad.lerp(past, group["momentum"]))
                parameter.mul_(1 - group["lr"] * group["decay"])
                parameter.add_(step, alpha=-0.2 * group["lr"] * max(parameter.shape) ** 0.5)


def _orthogonal(step: torch.Tensor) -> torch.Tensor:
    x = step / step.norm().clamp(min=1e-7)
    upright = x.shape[0] > x.shape[1]
    if upright:
        x = x.T
    for _ in range(_ROUNDS):
        gram = x @ x.T
        x = _A * x + (_B * gram + _C * gram @ gram) @ x
    return x.T if upright else x
