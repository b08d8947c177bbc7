"""Builds the ASGI app of an API process (a process that answers HTTP requests) from settings, engines and APIs:
`standalone_app` for uvicorn or gunicorn, `workers_app` and `attached_app` for `genai-server serve`.

serve_command.py has the arguments of the command, server_lifetime.py the lifetime of the processes, and preflight.py
the checks of the settings before they start.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

from fastapi import FastAPI
from uvicorn.config import STARTUP_FAILURE

from genai_server.apis.app import Attachment, ModelFiles, Telemetry, create_app
from genai_server.apis.metrics import api_metrics
from genai_server.cli.serve.attach import find_or_start
from genai_server.cli.serve.exit_status import WRONG_SETTING, note_cut_off
from genai_server.cli.serve.loaders import ReadTexts, load_traces, model_store, text_loader, with_preloaded
from genai_server.cli.serve.preflight import check_models, check_storage
from genai_server.cli.serve.process_limits import raise_file_limit
from genai_server.cli.serve.shutdown import StopSignals
from genai_server.config.environment import shared_metrics
from genai_server.config.settings import Settings
from genai_server.config.sources import load_settings
from genai_server.http.api_keys import ApiKeys, load_keys
from genai_server.http.middleware.request_lifetime import Drain
from genai_server.http.telemetry.request_record import log_request
from genai_server.logs import configure_logging
from genai_server.system.processes import open_runtime_folder, parent_of_workers
from genai_server.system.resources import release_large_blocks_at_once, share_heaps

# Seconds between two looks for the parent of a worker of gunicorn.
_CHECK_INTERVAL = 1.0
# Seconds for an API process to end its clients' requests after its parent has died.
_ORPHAN_SECONDS = 5.0


def standalone_app() -> FastAPI:
    """Return the ASGI app for a server that was started by `uvicorn` or `gunicorn` itself and not by `genai-server
    serve`. Raises ConfigurationError for wrong settings.

    Settings are checked here because an error in the ASGI lifespan would be printed with its whole traceback.
    """
    settings = load_settings()
    configure_logging(settings.log_level, settings.log_format)
    check_storage(settings)
    texts = check_models(settings)
    # uvicorn's own option says where it listens; the app cannot see it.
    return attached_app(settings, _attachment(settings, stop_server), texts, on_loopback=False)


def workers_app() -> FastAPI:
    """Return the ASGI app for one of several API processes of `genai-server serve`. Its settings come from the
    environment, into which the parent process has written them after checking them.
    """
    settings = load_settings()
    configure_logging(settings.log_level, settings.log_format)
    return attached_app(settings, _attachment(settings), {}, on_loopback=settings.on_loopback)


def status_of_a_failed_start() -> int:
    """Return the exit status for a process in which the app cannot be built. In a worker of uvicorn, it is the status
    that keeps uvicorn from starting the worker again.
    """
    return WRONG_SETTING if multiprocessing.parent_process() is None else STARTUP_FAILURE


def attached_app(settings: Settings, attachment: Attachment, texts: ReadTexts, *, on_loopback: bool) -> FastAPI:
    """Return the ASGI app of an API process. It uses the engines of the supervisor that `attachment` describes how to
    find. Raises ConfigurationError for wrong settings.

    `texts` are text codecs (tokenizer and chat template of a model) that the checks of the settings have loaded; the
    app takes them over. `on_loopback` says whether the server is known to be reachable from this machine only.
    """
    release_large_blocks_at_once()
    share_heaps()
    raise_file_limit()
    registry, instruments = api_metrics(shared_metrics(), settings.metrics_prefix, with_keys=settings.metrics_keys)
    telemetry = Telemetry(registry, [log_request, instruments.observe], instruments=instruments)
    if (traces := load_traces(settings)) is not None:
        telemetry = replace(telemetry, observers=[*telemetry.observers, traces.observe], close=traces.close)
    drain = Drain(settings.drain_timeout)

    @asynccontextmanager
    async def attached() -> AsyncIterator[Attachment]:
        if (parent := parent_of_workers()) is not None:
            threading.Thread(target=_end_with, args=(parent,), name="parent-watch", daemon=True).start()

        def note() -> None:
            note_cut_off(attachment.folder, os.getpid())

        with StopSignals(drain, note, is_worker=parent is not None):
            yield attachment

    return create_app(
        settings,
        attached,
        ModelFiles(with_preloaded(texts, text_loader(settings)), model_store(settings)),
        drain,
        _live_keys(settings),
        telemetry,
        on_loopback=on_loopback,
    )


def stop_server() -> None:
    """Stop the whole server to which this process belongs, by sending SIGTERM to its first process. (If only a worker
    were stopped, its parent would replace it.)
    """
    if (parent := parent_of_workers()) is None:
        signal.raise_signal(signal.SIGTERM)
    else:
        os.kill(parent, signal.SIGTERM)


def _attachment(settings: Settings, on_nothing_loaded: Callable[[], None] = lambda: None) -> Attachment:
    """Return how this process finds its supervisor, the process that starts engines. The workers of one parent process
    share a supervisor; a process without a parent has a supervisor of its own.

    `on_nothing_loaded` is called if no device could load its model.
    """
    parent = parent_of_workers()
    first = os.getpid() if parent is None else parent
    return Attachment(open_runtime_folder(first), partial(find_or_start, settings, first), on_nothing_loaded)


def _live_keys(settings: Settings) -> ApiKeys:
    """Return the configured API keys. Their file is read again whenever this process receives SIGHUP."""
    keys = load_keys(settings)
    if sys.platform != "win32" and threading.current_thread() is threading.main_thread():
        if settings.api_key_file:
            signal.signal(signal.SIGHUP, lambda *_: keys.reread())
        elif multiprocessing.parent_process() is not None:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
    return keys


def _end_with(parent: int) -> None:
    """Wait until the process with the id `parent` ends, and then end this worker process, first orderly and after a few
    seconds by force, because nobody else would stop it. Runs in a thread of its own.
    """
    if (started_by := multiprocessing.parent_process()) is not None:
        started_by.join()
    else:
        while os.getppid() == parent:
            time.sleep(_CHECK_INTERVAL)
    signal.raise_signal(signal.SIGTERM)
    time.sleep(_ORPHAN_SECONDS)
    os._exit(1)
