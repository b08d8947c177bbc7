"""Puts settings, engines and API together: the only place that knows all of them."""

import getpass
import importlib.util
import multiprocessing
import os
import signal
import ssl
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import FastAPI
from filelock import FileLock, Timeout

from genai_server.api.app import Books, Engines, create_app
from genai_server.api.drain import Drain
from genai_server.api.instruments import request_metrics
from genai_server.api.keys import ApiKeys, load_keys
from genai_server.api.request_log import log_request
from genai_server.api.served_model import LoadText
from genai_server.cli.exit_status import note_cut_off
from genai_server.cli.process_limits import give_back_large_blocks, raise_file_limit
from genai_server.cli.stop_signals import StopSignals
from genai_server.config import (
    Settings,
    device_options,
    engines_to_attach,
    environment_variable,
    load_settings,
    shared_metrics,
)
from genai_server.engine.model_files import check_model_directory
from genai_server.engines.supervisor import Supervisor
from genai_server.errors import ConfigurationError, ModelDirectoryError
from genai_server.logs import configure_logging
from genai_server.text.codec import TextCodec, load_text_codec

if TYPE_CHECKING:
    from genai_server.api.traces import Traces

# Seconds that an API process whose parent has died has for telling its clients.
_ORPHAN_SECONDS = 5.0
_LIBRARY = "onnxruntime_genai"
# Characters, for each byte that a body may have: templates write some things twice, and JSON longer than it came.
_LONGEST_PROMPT = 4
_NO_LIBRARY = (
    "onnxruntime-genai is not installed; install exactly one of genai-server[cpu], genai-server[cuda] "
    "and genai-server[directml]"
)


def check_models(settings: Settings) -> None:
    """See that all configured models can be served, for all that can be known before anything starts.

    Raises ConfigurationError.
    """
    load_text = text_loader(settings)
    for name, path in settings.served.items():
        device_options(settings, name)
        try:
            load_text(path, settings.devices)
        except ModelDirectoryError as error:
            setting = f"GENAI_MODELS: {name}={path}" if settings.models else f"--model-dir or GENAI_MODEL_DIR={path}"
            raise ConfigurationError(f"{setting}: {error}") from None


def text_loader(settings: Settings) -> LoadText:
    """What checks a model directory and reads its text side for each of some devices.

    It raises ConfigurationError, and ModelDirectoryError with the file's name.
    """

    def load_text(path: str, devices: Sequence[str]) -> Mapping[str, TextCodec]:
        model_dir = Path(path)
        if not all(device.startswith("scripted") for device in devices):
            if importlib.util.find_spec(_LIBRARY) is None:
                raise ConfigurationError(_NO_LIBRARY)
            check_model_directory(model_dir)
        return {
            device: load_text_codec(
                model_dir,
                device,
                tool_parser=settings.tool_parser,
                allow_special_tokens=settings.allow_special_tokens,
                max_characters=_LONGEST_PROMPT * settings.max_body_bytes,
            )
            for device in devices
        }

    return load_text


def check_doors(settings: Settings) -> None:
    """See that the server can be opened as the settings say. Raises ConfigurationError."""
    if not (_checked_keys(settings).required or settings.on_loopback or settings.insecure):
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


def load_traces(settings: Settings) -> "Traces | None":
    """What sends traces, if they are wanted. Raises ConfigurationError."""
    if not settings.otlp_endpoint:
        return None
    try:
        from genai_server.api.traces import Traces
    except ImportError:
        raise ConfigurationError(
            f"GENAI_OTLP_ENDPOINT={settings.otlp_endpoint}: OpenTelemetry is not installed; install genai-server[otel]"
        ) from None
    return Traces(settings.otlp_endpoint)


def _no_password() -> str:
    raise ValueError("the private key has a password")


def _checked_keys(settings: Settings) -> ApiKeys:
    """The API keys.

    Raises ConfigurationError for wrong ones, for one that is the admin key, and for limits without a key to count for.
    """
    keys = load_keys(settings)
    if settings.admin_api_key and (same := keys.find(settings.admin_api_key)) is not None:
        raise ConfigurationError(f"GENAI_ADMIN_API_KEY: it must be no API key, and is that of {same.name}")
    for name in ("max_concurrent_per_key", "rate_per_key"):
        if getattr(settings, name) and not keys.required:
            raise ConfigurationError(
                f"{environment_variable(name)}={getattr(settings, name)}: it counts for each key; "
                "set GENAI_API_KEYS or GENAI_API_KEY_FILE"
            )
    return keys


def _live_keys(settings: Settings) -> ApiKeys:
    """The API keys, whose file SIGHUP has this process read again."""
    keys = _checked_keys(settings)
    if settings.api_key_file and hasattr(signal, "SIGHUP") and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGHUP, lambda *_: keys.reread())
    return keys


def app_from_environment() -> FastAPI:
    """The app of an API process: attached to engines that run already, or with engines of its own."""
    settings = load_settings()
    configure_logging(settings.log_level, settings.log_format)
    folder = engines_to_attach()
    if folder is not None:
        threading.Thread(target=_end_with_the_parent, name="parent-watch", daemon=True).start()
        return attached_app(settings, folder)
    return standalone_app(settings)


def attached_app(settings: Settings, folder: Path) -> FastAPI:
    """An app beside engines that somebody else supervises. Raises ConfigurationError."""
    drain = Drain(settings.drain_timeout)

    @asynccontextmanager
    async def engines() -> AsyncIterator[Path]:
        with _stop_signals(drain, folder):
            yield folder

    return _create(settings, engines, drain, on_loopback=settings.on_loopback)


def standalone_app(settings: Settings) -> FastAPI:
    """An app that starts engines of its own, as under plain `uvicorn`.

    Raises ConfigurationError, also at its start-up in a second worker of `uvicorn --workers`, which would load the
    model once more.
    """
    check_models(settings)
    drain = Drain(settings.drain_timeout)

    @asynccontextmanager
    async def engines() -> AsyncIterator[Path]:
        with _only_worker():
            supervisor = Supervisor(settings, on_nothing_loaded=_end_this_process)
            supervisor.start()
            try:
                with _stop_signals(drain, supervisor.folder):
                    yield supervisor.folder
            finally:
                supervisor.stop()

    # Where uvicorn listens is its own option, which nobody tells the app.
    return _create(settings, engines, drain, on_loopback=False)


def _stop_signals(drain: Drain, folder: Path) -> StopSignals:
    # Ctrl-C reaches the whole process group; the parent of an API process passes on what it means.
    ignored = (signal.SIGINT,) if multiprocessing.parent_process() is not None and sys.platform != "win32" else ()
    return StopSignals(drain, lambda: note_cut_off(folder, os.getpid()), ignored)


def _create(settings: Settings, engines: Engines, drain: Drain, *, on_loopback: bool) -> FastAPI:
    give_back_large_blocks()
    raise_file_limit()
    registry, instruments = request_metrics(shared_metrics())
    books = Books(registry, [log_request, instruments.observe])
    if (traces := load_traces(settings)) is not None:
        books = replace(books, observers=[*books.observers, traces.observe], close=traces.close)
    return create_app(
        settings, engines, text_loader(settings), drain, _live_keys(settings), books, on_loopback=on_loopback
    )


def _end_with_the_parent() -> None:
    """An API process without its parent has no engines, but would keep the port."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        _end_this_process()
        time.sleep(_ORPHAN_SECONDS)
        os._exit(1)


def _end_this_process() -> None:
    """As an operator would: uvicorn shuts down."""
    signal.raise_signal(signal.SIGTERM)


@contextmanager
def _only_worker() -> Iterator[None]:
    """Hold the lock that the workers of one uvicorn share. Raises ConfigurationError if another one holds it."""
    parent = multiprocessing.parent_process()
    if parent is None:
        yield
        return
    path = Path(tempfile.gettempdir()) / f"genai-server-{getpass.getuser()}-{parent.pid}.lock"
    try:
        with FileLock(path, mode=0o600).acquire(timeout=0):
            yield
            path.unlink(missing_ok=True)
    except Timeout:
        raise ConfigurationError(
            "each worker of plain uvicorn would load the model again; "
            "for several API processes use: genai-server serve --workers N"
        ) from None
