"""Decides by a device's settings alone which runner it can have. Neither ONNX Runtime nor a model is loaded."""

import importlib.util
from pathlib import Path
from typing import Protocol

from genai_server.errors import ConfigurationError, quoted
from genai_server.model_files.pooling_model import task_of
from genai_server.options.device import DeviceOptions, unreachable
from genai_server.options.providers import CPU, PROVIDERS
from genai_server.options.table import Reach


class RunnerSettings(Protocol):
    """The settings that choose a runner."""

    @property
    def scheduler(self) -> str:
        """The setting GENAI_SCHEDULER."""
        ...

    @property
    def exact(self) -> bool:
        """The setting GENAI_EXACT."""
        ...


def check_runner(device: str, model_dir: Path, settings: RunnerSettings, options: DeviceOptions) -> None:
    """Check that a device supports the runner that the settings ask for, and that all options affect that runner.

    Whether the model's graph fits a batch is checked later. Raises ConfigurationError.
    """
    for given in options.providers:
        if given.package and importlib.util.find_spec(given.package.partition(".")[0]) is None:
            raise ConfigurationError(
                f"[provider.{given.name}] package={quoted(given.package)}: it is not installed; "
                f"pip install {given.package.replace('_', '-')}"
            )
    if task_of(model_dir).pools:
        return  # it has a session of its own, which all options for the batch reach
    if (why := never_batched(device, settings)) is None:
        return
    if settings.scheduler == "batched":
        raise ConfigurationError(f"GENAI_SCHEDULER=batched: {why}")
    check_reach(device, options, Reach.GENERATOR, why)


def check_reach(device: str, options: DeviceOptions, runner: Reach, why: str) -> None:
    """Raise ConfigurationError for options that have no effect on the runner in use. `why` says why it is in use."""
    if found := unreachable(options, runner):
        if runner is Reach.BATCHED and unreachable(options, Reach.GENERATOR) is None:
            why += "; with GENAI_SCHEDULER=generator they run one by one, and the option has an effect"
        raise ConfigurationError(f"{found}, which device {device} does not run on: {why}")


def never_batched(device: str, settings: RunnerSettings) -> str | None:
    """Why these settings rule out a batch on a device; None if they allow one."""
    if settings.scheduler == "generator":
        return "GENAI_SCHEDULER is generator"
    kind = device.partition(":")[0]
    having = [name for name, provider in PROVIDERS.items() if provider.memory]
    if kind not in having:
        return f"a batch runs on {', '.join(having)}, not on {kind}"
    if kind != CPU and settings.exact:
        return f"GENAI_EXACT is true, and a batch on {kind} is not exact"
    return None
