"""Decides from the settings alone whether a device can run a model, and whether its sequences run in a batch or one by
one with onnxruntime-genai. Neither ONNX Runtime nor a model is loaded, so the server can check its settings when it
starts.
"""

import importlib.util
from pathlib import Path
from typing import Protocol

from genai_server.errors import ConfigurationError, quoted
from genai_server.model_files.pooling_model import task_of
from genai_server.options.device import DeviceOptions, unreachable
from genai_server.options.providers import CPU, PROVIDERS
from genai_server.options.table import Reach


class RunnerSettings(Protocol):
    """The settings that decide whether sequences run in a batch: an interface that the specifications of engines and
    the server's configuration fulfil.
    """

    @property
    def scheduler(self) -> str:
        """The value of the setting GENAI_SCHEDULER: "batched" requires a batch, "generator" rules it out, and "auto"
        allows it.
        """
        ...

    @property
    def exact(self) -> bool:
        """The value of the setting GENAI_EXACT: whether answers must be bitwise the same, whatever else runs."""
        ...


def check_runner(device: str, model_dir: Path, settings: RunnerSettings, options: DeviceOptions) -> None:
    """Check that a device can run the model in `model_dir` as the settings ask, in a batch or one by one, that the
    Python packages of its execution providers are installed, and that all `options` of the device have an effect.

    Raises ConfigurationError otherwise. Whether the model's graph can run in a batch is checked only when the model is
    loaded.
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
    """Raise ConfigurationError if one of the device's options has no effect in the way in which the model runs.

    `runner` is this way: Reach.BATCHED for a batch, Reach.GENERATOR for onnxruntime-genai. `why` is the reason for it,
    for the message.
    """
    if problem := unreachable(options, runner):
        if runner is Reach.BATCHED and unreachable(options, Reach.GENERATOR) is None:
            why += "; with GENAI_SCHEDULER=generator they run one by one, and the option has an effect"
        raise ConfigurationError(f"{problem}, which device {device} does not run on: {why}")


def never_batched(device: str, settings: RunnerSettings) -> str | None:
    """Return the reason why the device and the settings rule out a batch, whatever the model is;
    None if they allow it.
    """
    if settings.scheduler == "generator":
        return "GENAI_SCHEDULER is generator"
    kind = device.partition(":")[0]
    having = [name for name, provider in PROVIDERS.items() if provider.memory]
    if kind not in having:
        return f"a batch runs on {', '.join(having)}, not on {kind}"
    if kind != CPU and settings.exact:
        return f"GENAI_EXACT is true, and a batch on {kind} is not exact"
    return None
