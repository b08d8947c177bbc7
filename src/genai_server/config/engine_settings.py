"""What engines are started with: their part of the settings, and the options of each device."""

from collections.abc import Sequence

from genai_server.config.settings import Settings, environment_variable
from genai_server.errors import ConfigurationError
from genai_server.messages.launch import EngineSettings
from genai_server.options import config_file
from genai_server.options.device import DeviceOptions
from genai_server.options.session import THREADS


def engine_settings(settings: Settings) -> EngineSettings:
    """The settings that all engines share."""
    given = {name: getattr(settings, name) for name in EngineSettings.__struct_fields__}
    paths = {"cache_dir": str(settings.cache_path or ""), "profile_dir": str(settings.profile_dir)}
    return EngineSettings(**given | paths)


def device_options(
    settings: Settings, model: str | None = None, devices: Sequence[str] | None = None
) -> dict[str, DeviceOptions]:
    """The session and provider options of each device, from the configuration file, overridden by `options`.

    `model` defaults to the first model, `devices` to the configured ones. Raises ConfigurationError.
    """
    sources = [
        config_file.read_file(settings.config),
        config_file.read_text(settings.options, environment_variable("options")),
    ]
    chosen = settings.devices if devices is None else devices
    real = [device for device in chosen if not device.startswith("scripted")]
    found = config_file.device_options(sources, model or next(iter(settings.served)), real)
    for device, options in found.items():
        threads = options.session.get(THREADS, "0")
        if settings.threads and threads not in ("0", str(settings.threads)):
            raise ConfigurationError(
                f"[session] {THREADS}={threads}: {environment_variable('threads')} says {settings.threads} for {device}"
            )
    return found
