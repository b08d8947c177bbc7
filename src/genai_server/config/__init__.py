"""The settings: command line > environment > .env > configuration file > default, each checked before anything starts.

The only room that reads the process's environment.
"""

from genai_server.config.addresses import is_loopback
from genai_server.config.command_line import add_options
from genai_server.config.environment import (
    builder_environment,
    disable_telemetry,
    engines_to_attach,
    export_engines,
    export_settings,
    export_shared_metrics,
    limit_tokenizer_threads,
    shared_metrics,
)
from genai_server.config.session_options import device_options
from genai_server.config.settings import ADAPTER_NAME, MODEL_NAME, Settings, device_list, environment_variable, option
from genai_server.config.sources import load_settings, unknown_variables

__all__ = [
    "ADAPTER_NAME",
    "MODEL_NAME",
    "Settings",
    "add_options",
    "builder_environment",
    "device_list",
    "device_options",
    "disable_telemetry",
    "engines_to_attach",
    "environment_variable",
    "export_engines",
    "export_settings",
    "export_shared_metrics",
    "is_loopback",
    "limit_tokenizer_threads",
    "load_settings",
    "option",
    "shared_metrics",
    "unknown_variables",
]
