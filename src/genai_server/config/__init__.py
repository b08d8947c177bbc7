"""The settings: command line > environment > .env > configuration file > default. All are checked before the start.

The only package that reads the process's environment.
"""

from genai_server.config.environment import (
    allow_telemetry,
    builder_environment,
    checker_environment,
    engine_environment,
    engines_to_attach,
    export_engines,
    export_settings,
    export_shared_metrics,
    keep_ray_local,
    limit_tokenizer_threads,
    shared_metrics,
)
from genai_server.config.settings import (
    ADAPTER_NAME,
    MODEL_NAME,
    Settings,
    device_list,
    environment_variable,
    is_loopback,
    option,
)
from genai_server.config.sources import (
    add_options,
    device_options,
    engine_settings,
    load_settings,
    unknown_variables,
)

__all__ = [
    "ADAPTER_NAME",
    "MODEL_NAME",
    "Settings",
    "add_options",
    "allow_telemetry",
    "builder_environment",
    "checker_environment",
    "device_list",
    "device_options",
    "engine_environment",
    "engine_settings",
    "engines_to_attach",
    "environment_variable",
    "export_engines",
    "export_settings",
    "export_shared_metrics",
    "is_loopback",
    "keep_ray_local",
    "limit_tokenizer_threads",
    "load_settings",
    "option",
    "shared_metrics",
    "unknown_variables",
]
