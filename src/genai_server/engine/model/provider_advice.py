"""Advice on what to install for an execution provider that the installed libraries do not have."""

import importlib.metadata
import sys

from genai_server.options.providers import provider
from genai_server.system.installation import this_installation

# The package of the extra `directml`, whose last version on the package index loads no current model.
_OLD_DIRECTML = "onnxruntime-genai-directml"


def how_to_get(name: str) -> str:
    """End of an error message about a missing provider, which says what to install; "" where nothing is known."""
    known = provider(name)
    if known.package:
        package = known.package.replace("_", "-")
        return f'; pip install {package}, and write package = "{known.package}" in [provider.{name}]'
    if known.extra == "winml" and sys.platform != "win32":
        return "; DirectML is for Windows only"
    if known.extra and _version(f"onnxruntime-genai-{known.extra}") is None:
        return f"; the extra {known.extra} has it: {this_installation().device_command(known.extra)}"
    return ""


def newer_directml() -> str:
    """End of an error message about a model that cannot be loaded: advice to replace an outdated DirectML package.

    "" if that package is not installed.
    """
    version = _version(_OLD_DIRECTML)
    if version is None:
        return ""
    command = this_installation().device_command("winml")
    return f"; {_OLD_DIRECTML} {version} is the last of its kind, the extra winml has today's library: {command}"


def _version(package: str) -> str | None:
    """Version of an installed package; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
