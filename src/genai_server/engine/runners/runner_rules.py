"""Decides from the settings alone in which way a device can run a model. Neither ONNX Runtime nor a model is loaded."""

import importlib.util
from pathlib import Path
from typing import Protocol

from genai_server.errors import ConfigurationError, quoted
from genai_server.model_files.pooling_model import task_of
from genai_server.options.device import DeviceOptions, unreachable
from genai_server.options.providers import CPU, PROVIDERS
from genai_server.options.table import Reach


class RunnerSettings(Protocol):
    """Those settings that decide whether sequences run in a batch."""

    @property
    def scheduler(self) -> str:
        """The setting GENAI_SCHEDULER."""
        ...

    @property
    def exact(self) -> bool:
        """The setting GENAI_EXACT."""
        ...


def check_runner(device: str, model_dir: Path, settings: RunnerSettings, options: DeviceOptions) -> None:
    """Check that a device can run a model as the settings ask, in a batch or one by one, and that all options have an
    effect.

    Whether the model's graph fits a batch is checked when the model is loaded. Raises ConfigurationError.
    """
    for ep in options.providers:
        if ep.package and importlib.util.find_spec(ep.package.partition(".")[0]) is None:
            raise ConfigurationError(
                f"[provider.{ep.name}] package={quoted(ep.package)}: it is not installed; "
                f"pip install {ep.package.replace('_', '-')}"
            )
    if task_of(model_dir).pools:
        return  # it has a session of its own, which all options for the batch reach
    if (why := never_batched(device, settings)) is None:
        return
    if settings.scheduler == "batched":
        raise ConfigurationError(f"GENAI_SCHEDULER=batched: {why}")
    check_reach(device, options, Reach.GENERATOR, why)


def check_reach(device: str, options: DeviceOptions, runner: Reach, why: str) -> None:
    """Raise ConfigurationError if an option has no effect with the runner in use. `why` is the reason why this runner
    is used, for the message.
    """
    if problem := unreachable(options, runner):
        if runner is Reach.BATCHED and unreachable(options, Reach.GENERATOR) is None:
            why += "; with GENAI_SCHEDULER=generator they run one by one, and the option has an effect"
        raise ConfigurationError(f"{problem}, which device {device} does not run on: {why}")


def never_batched(device: str, settings: RunnerSettings) -> str | None:
    """The reason why these settings rule out a batch on a device; None if they allow it."""
    if settings.scheduler == "generator":
        return "GENAI_SCHEDULER is generator"
    kind = device.partition(":")[0]
    having = [name for name, provider in PROVIDERS.items() if provider.memory]
    if kind not in having:
        return f"a batch runs on {', '.join(having)}, not on {kind}"
    if kind != CPU and settings.exact:
        return f"GENAI_EXACT is true, and a batch on {kind} is not exact"
    return None
