"""Settings of a test, whatever the environment and the folder have."""

from genai_server.config import Settings, load_settings


def given(**options: str | None) -> Settings:
    """Settings from the command line alone."""
    return load_settings(options, environ={}, dotenv=None)
