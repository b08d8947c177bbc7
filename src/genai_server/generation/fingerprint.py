"""The `system_fingerprint` of responses. It stays the same as long as a model is served in the same way."""

import hashlib
import json
import sys
from pathlib import Path

import msgspec

from genai_server import __version__
from genai_server.config.settings import Settings
from genai_server.config.sources import device_options
from genai_server.messages.server_status import ModelStatus

# Settings that can affect answers, if only by rounding.
_SETTINGS = (
    "attention_type",
    "exact",
    "kv_cache_type",
    "max_length",
    "encoder_weights",
    "scheduler",
    "speculation",
    "threads",
    "tool_parser",
)
# Directories whose names contain library versions. Reading all distributions would take longer.
_LIBRARIES = ("onnxruntime*.dist-info", "genai_server_native*.dist-info")


def fingerprint(settings: Settings, about: ModelStatus) -> str:
    """The fingerprint of a model as it is served: `fp_` and a hash of what can affect answers.

    This is the model's files (name, size and modification time), the versions of the server and its libraries, and
    several settings. Slow, so call it in a thread. Raises ConfigurationError.
    """
    paths = [path for path in (*Path(about.path).glob("*"), Path(about.chat_template)) if path.is_file()]
    parts = {
        "files": sorted((path.name, (stat := path.stat()).st_size, stat.st_mtime_ns) for path in paths),
        "libraries": sorted(
            folder.name for path in sys.path for form in _LIBRARIES for folder in Path(path).glob(form)
        ),
        "server": __version__,
        "settings": {name: getattr(settings, name) for name in _SETTINGS},
        "chat_template": about.chat_template,
        "devices": about.devices,
        "options": msgspec.to_builtins(device_options(settings, about.name, about.devices)),
    }
    return f"fp_{hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]}"
