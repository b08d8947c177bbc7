"""What is wrong with the settings, as far as it can be known before anything starts: said in one line, at once.

Whatever starts engines looks first. What is loaded for it is loaded again by those who use it.
"""

import ssl
from pathlib import Path

from genai_server.api.keys import load_keys
from genai_server.cli.loaders import load_traces, text_loader
from genai_server.config import Settings, device_options
from genai_server.errors import ConfigurationError, ModelDirectoryError


def check_server(settings: Settings) -> None:
    """See that the server can be opened, and its models served. Raises ConfigurationError."""
    check_processes(settings)
    check_doors(settings)
    if (traces := load_traces(settings)) is not None:
        traces.close()
    check_models(settings)


def check_models(settings: Settings) -> None:
    """See that all configured models can be served; under plain uvicorn all that is ours to check.

    Raises ConfigurationError.
    """
    load_text = text_loader(settings)
    for name, path in settings.served.items():
        device_options(settings, name)
        for adapter, file in settings.adapter_files(name).items():
            if not Path(file).is_file():
                raise ConfigurationError(f"GENAI_ADAPTERS: {name}:{adapter}={file}: there is no such file")
        try:
            load_text(path, settings.devices)
        except ModelDirectoryError as error:
            setting = f"GENAI_MODELS: {name}={path}" if settings.models else f"--model-dir or GENAI_MODEL_DIR={path}"
            raise ConfigurationError(f"{setting}: {error}") from None


def check_processes(settings: Settings) -> None:
    """See that the API processes can be had as the settings say. Raises ConfigurationError."""
    if settings.reload and settings.workers > 1:
        raise ConfigurationError(f"RELOAD=true WORKERS={settings.workers}: reloading works with one API process only")


def check_doors(settings: Settings) -> None:
    """See that the server can be opened as the settings say, and not to strangers unless that is wanted.

    Raises ConfigurationError.
    """
    if not (load_keys(settings).required or settings.on_loopback or settings.insecure):
        raise ConfigurationError(
            f"HOST={settings.host}: others can reach the server, and there are no API keys; set GENAI_API_KEYS or "
            "GENAI_API_KEY_FILE (genai-server key NAME makes a key), or serve everybody with --insecure"
        )
    if settings.tls_key and not settings.tls_cert:
        raise ConfigurationError(f"GENAI_TLS_KEY={settings.tls_key}: GENAI_TLS_CERT must name its certificate")
    if settings.tls_cert:
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
                settings.tls_cert, settings.tls_key or None, _no_password
            )
        except (OSError, ValueError) as error:
            key = f" GENAI_TLS_KEY={settings.tls_key}" if settings.tls_key else ""
            reason = error.strerror or error if isinstance(error, OSError) else error
            raise ConfigurationError(f"GENAI_TLS_CERT={settings.tls_cert}{key}: cannot be used: {reason}") from None


def _no_password() -> str:
    raise ValueError("the private key has a password")
