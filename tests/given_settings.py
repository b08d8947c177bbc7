"""Settings of a test, whatever the environment and the folder have."""

from genai_server.config.settings import Settings
from genai_server.config.sources import load_settings


def given(**options: str | None) -> Settings:
    """Settings from the command line alone."""
    return load_settings(options, environ={}, dotenv=None)
