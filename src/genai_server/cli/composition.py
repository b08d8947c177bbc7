"""Puts settings, engines and API together: the only place that knows all of them."""

import getpass
import importlib.util
import multiprocessing
import signal
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from fastapi import FastAPI
from filelock import FileLock, Timeout

from genai_server.api.app import create_app
from genai_server.config import Settings, device_options, engines_to_attach, load_settings
from genai_server.engine.model_files import check_model_directory
from genai_server.engines.supervisor import Supervisor
from genai_server.errors import ConfigurationError, ModelDirectoryError
from genai_server.logs import configure_logging
from genai_server.text.codec import TextCodec, load_text_codec

_LIBRARY = "onnxruntime_genai"
# Characters, for each byte that a body may have: templates write some things twice, and JSON longer than it came.
_LONGEST_PROMPT = 4
_NO_LIBRARY = (
    "onnxruntime-genai is not installed; install exactly one of genai-server[cpu], genai-server[cuda] "
    "and genai-server[directml]"
)


def load_codecs(settings: Settings) -> dict[str, TextCodec]:
    """The text side of each device's model, once all is checked that can be known to fail before anything starts.

    Raises ConfigurationError.
    """
    device_options(settings)
    model_dir = Path(settings.model_dir)
    try:
        if not all(device.startswith("scripted") for device in settings.devices):
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
            for device in settings.devices
        }
    except ModelDirectoryError as error:
        raise ConfigurationError(f"--model-dir or GENAI_MODEL_DIR={settings.model_dir}: {error}") from None


def app_from_environment() -> FastAPI:
    """The app of an API process: attached to engines that run already, or with engines of its own."""
    settings = load_settings()
    configure_logging(settings.log_level)
    folder = engines_to_attach()
    if folder is not None:
        threading.Thread(target=_end_with_the_parent, name="parent-watch", daemon=True).start()
        return attached_app(settings, folder)
    return standalone_app(settings)


def attached_app(settings: Settings, folder: Path) -> FastAPI:
    """An app beside engines that somebody else supervises. Raises ConfigurationError."""

    @asynccontextmanager
    async def engines() -> AsyncIterator[Path]:
        yield folder

    return create_app(settings, engines, load_codecs(settings), on_loopback=settings.on_loopback)


def standalone_app(settings: Settings) -> FastAPI:
    """An app that starts engines of its own, as under plain `uvicorn`.

    Raises ConfigurationError, also at its start-up in a second worker of `uvicorn --workers`, which would load the
    model once more.
    """

    @asynccontextmanager
    async def engines() -> AsyncIterator[Path]:
        with _only_worker():
            supervisor = Supervisor(settings, on_nothing_loaded=_end_this_process)
            supervisor.start()
            try:
                yield supervisor.folder
            finally:
                supervisor.stop()

    # Where uvicorn listens is its own option, which nobody tells the app.
    return create_app(settings, engines, load_codecs(settings), on_loopback=False)


def _end_with_the_parent() -> None:
    """An API process without its parent has no engines, but would keep the port."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        _end_this_process()


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
