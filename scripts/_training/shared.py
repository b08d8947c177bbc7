"""What the trainings share: the budget and its course, an optimizer, and steps along several batches at once."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from .tables import table

_A, _B, _C = 3.4445, -4.775, 2.0315  # as PyTorch's
_ROUNDS = 5
_SECONDS_BETWEEN_REPORTS = 15.0
SEED = 20_26  # of the weights and the data
THREADS = 2
Item = TypeVar("Item")


@dataclass(frozen=True)
class Budget:
    """What training may use; it ends with the steps or the minutes, whichever are over first."""

    steps: int
    minutes: float


@dataclass
class Course:
    """The course of a training: the rate of learning, and reports.

    The rate rises to its peak in the first share `warm_up` of the budget, and falls to zero in the last share `fall`.
    Losses are printed now and then.
    """

    budget: Budget
    optimizers: Sequence[torch.optim.Optimizer]
    rate: float
    fall: float = 0.6
    warm_up: float = 0.03
    _averages: dict[str, float] = field(default_factory=dict)

    def steps(self) -> Iterator[float]:
        """Before each step the share of the budget that is used."""
        budget, step = self.budget, 0
        start = reported = time.monotonic()
        while (done := max(step / budget.steps, (time.monotonic() - start) / (60 * budget.minutes))) < 1:
            for optimizer in self.optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = self.rate * min(1.0, done / self.warm_up, (1 - done) / self.fall)
            yield done
            step += 1
            now = time.monotonic()
            if now - reported > _SECONDS_BETWEEN_REPORTS:
                losses = ", ".join(f"{name} {loss:.4f}" for name, loss in self._averages.items())
                print(f"step {step}  {100 * done:3.0f} %  {losses}", flush=True)
                reported = now
        print(f"{step} steps in {(time.monotonic() - start) / 60:.1f} minutes")

    def note(self, **losses: float) -> None:
        """What a step has lost."""
        for name, loss in losses.items():
            self._averages[name] = 0.95 * self._averages.get(name, loss) + 0.05 * loss


def small_llama(name: str, **settings: int) -> LlamaForCausalLM:
    """A model with random weights, of the shape with this name and some other settings."""
    model = LlamaForCausalLM(LlamaConfig(**table("models")[name], **settings))
    model.set_attn_implementation("eager")  # on the CPU faster than the fused kernel at these lengths
    return model


@torch.no_grad()  # type: ignore[untyped-decorator]
def report(
    model: torch.nn.Module,
    batches: Iterable[Item],
    score: Callable[[Item], tuple[torch.Tensor, torch.Tensor, torch.Tensor]],
) -> None:
    """Print the share of the tokens in other batches than those of the training that the model finds likeliest.

    `score` returns logits [tokens, vocabulary], the right tokens, and weights, which are 0 for what does not count.
    """
    model.train(False)
    right = counted = 0
    for batch in batches:
        logits, targets, weights = score(batch)
        right += int(((logits.argmax(-1) == targets) & (weights > 0)).sum())
        counted += int((weights > 0).sum())
    print(f"  right: {100 * right / counted:.1f} % of {counted} tokens", flush=True)
    model.train()


def descend(model: torch.nn.Module, loss: torch.Tensor, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Step along the gradients of a loss."""
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()


def optimizers_of(
    model: torch.nn.Module, layers: Iterable[torch.nn.Module], rate: float, *, decay: float
) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside of layers, shared out over the threads; AdamW for everything else."""
    matrices = [p for layer in layers for p in layer.parameters() if p.ndim == 2 and p.requires_grad]
    chosen = {id(p) for p in matrices}
    rest = [p for p in model.parameters() if id(p) not in chosen and p.requires_grad]
    return [
        torch.optim.AdamW(rest, lr=rate, betas=(0.9, 0.98), weight_decay=decay, fused=True),
        *(Muon(matrices[thread::THREADS], lr=rate, momentum=0.95, decay=0.05) for thread in range(THREADS)),
    ]


def update(
    parameters: Sequence[torch.nn.Parameter],
    batches: Sequence[Item],
    loss: Callable[[Item], tuple[torch.Tensor, Sequence[float]]],
    optimizers: Sequence[torch.optim.Optimizer],
    pool: ThreadPoolExecutor,
) -> list[float]:
    """Step along the sum of the gradients of batches that are side by side, each on a thread of its own.

    Small matrices gain little from two threads on one operation, and lose much where another program holds one of the
    cores; batches side by side do not wait for each other. Returns the sums of what `loss` returns besides the loss.
    """

    def gradients(batch: Item) -> tuple[Sequence[float], tuple[torch.Tensor, ...]]:
        value, shown = loss(batch)
        return shown, torch.autograd.grad(value, parameters)

    results = list(pool.map(gradients, batches))
    for parameter, *found in zip(parameters, *(found for _, found in results), strict=True):
        parameter.grad = functools.reduce(torch.add, found)
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    list(pool.map(lambda optimizer: optimizer.step(), optimizers))
    return [sum(values) for values in zip(*(shown for shown, _ in results), strict=True)]


class Muon(torch.optim.Optimizer):  # type: ignore[misc]
    """Muon in 32 bits: PyTorch's computes in bfloat16, which processors without such units emulate slowly.

    Momentum whose steps are made orthogonal, for matrices; a step is as large as one of AdamW.
    """

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
