"""Composes settings, engines and API: builds the app of an API process.

`command` has the arguments and the lifetime of the processes; `preflight` checks the settings before they start.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from fastapi import FastAPI
from uvicorn.config import STARTUP_FAILURE

from genai_server.apis.app import Attachment, Engines, ModelFiles, Telemetry, create_app
from genai_server.apis.status.api_metrics import api_metrics
from genai_server.cli.serve.attach import attachment
from genai_server.cli.serve.exit_status import WRONG_SETTING, note_cut_off
from genai_server.cli.serve.loaders import load_traces, model_store, text_loader
from genai_server.cli.serve.preflight import check_models, check_storage
from genai_server.cli.serve.process_limits import raise_file_limit
from genai_server.cli.serve.signals import PARENTS_ORDER, STOP_SIGNALS, StopSignals
from genai_server.config.environment import engines_to_attach, shared_metrics
from genai_server.config.settings import Settings
from genai_server.config.sources import load_settings
from genai_server.http.api_keys import ApiKeys, load_keys
from genai_server.http.middleware.request_lifetime import Drain
from genai_server.http.telemetry.request_record import log_request
from genai_server.logs import configure_logging
from genai_server.messages.supervisor import read_address
from genai_server.process_memory import release_large_blocks_at_once, share_heaps

# Seconds for an API process to end its clients' requests after its parent has died.
_ORPHAN_SECONDS = 5.0


def app_from_environment() -> FastAPI:
    """The app of an API process: attached to running engines, or with engines of its own."""
    settings = load_settings()
    configure_logging(settings.log_level, settings.log_format)
    folder = engines_to_attach()
    if folder is not None:
        order = next(iter(_orders(settings)))
        threading.Thread(target=_end_with_the_parent, args=(order,), name="parent-watch", daemon=True).start()
        return attached_app(settings, folder)
    return standalone_app(settings)


def status_of_a_failed_start() -> int:
    """The exit status where there is no app. uvicorn starts a worker again unless it is uvicorn's own."""
    return WRONG_SETTING if multiprocessing.parent_process() is None else STARTUP_FAILURE


def attached_app(settings: Settings, folder: Path) -> FastAPI:
    """An app for engines that another process supervises. Raises ConfigurationError."""
    drain = Drain(settings.drain_timeout)
    orders = _orders(settings)

    @asynccontextmanager
    async def engines() -> AsyncIterator[Attachment]:
        with _stop_signals(drain, folder, orders):
            yield Attachment(folder, partial(read_address, folder))

    return _create(settings, engines, drain, on_loopback=settings.on_loopback)


def standalone_app(settings: Settings) -> FastAPI:
    """An app under plain `uvicorn` or `gunicorn`, whose supervisor the first of their workers starts.

    Raises ConfigurationError: an error of the lifespan would be printed with its whole traceback.
    """
    check_storage(settings)
    check_models(settings)
    drain = Drain(settings.drain_timeout)

    @asynccontextmanager
    async def engines() -> AsyncIterator[Attachment]:
        found = attachment(settings)
        with _stop_signals(drain, found.folder, _orders(settings)):
            yield found

    # uvicorn's own option says where it listens; the app cannot see it.
    return _create(settings, engines, drain, on_loopback=False)


def _orders(settings: Settings) -> Collection[signal.Signals]:
    """The signals that stop this process. Ctrl-C reaches the whole group, but one of several obeys its parent only."""
    orders: Collection[signal.Signals] = STOP_SIGNALS
    if sys.platform != "win32" and multiprocessing.parent_process() is not None:
        orders = (PARENTS_ORDER,) if settings.workers > 1 and not settings.reload else (signal.SIGTERM,)
    return orders


def _stop_signals(drain: Drain, folder: Path, orders: Collection[signal.Signals]) -> StopSignals:
    return StopSignals(drain, lambda: note_cut_off(folder, os.getpid()), orders)


def _live_keys(settings: Settings) -> ApiKeys:
    """The API keys, whose file is read again on SIGHUP. An API process has no other use for that signal."""
    keys = load_keys(settings)
    if sys.platform != "win32" and threading.current_thread() is threading.main_thread():
        if settings.api_key_file:
            signal.signal(signal.SIGHUP, lambda *_: keys.reread())
        elif multiprocessing.parent_process() is not None:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
    return keys


def _create(settings: Settings, engines: Engines, drain: Drain, *, on_loopback: bool) -> FastAPI:
    release_large_blocks_at_once()
    share_heaps()
    raise_file_limit()
    registry, instruments = api_metrics(shared_metrics(), settings.metrics_prefix, with_keys=settings.metrics_keys)
    telemetry = Telemetry(registry, [log_request, instruments.observe], instruments=instruments)
    if (traces := load_traces(settings)) is not None:
        telemetry = replace(telemetry, observers=[*telemetry.observers, traces.observe], close=traces.close)
    return create_app(
        settings,
        engines,
        ModelFiles(text_loader(settings), model_store(settings)),
        drain,
        _live_keys(settings),
        telemetry,
        on_loopback=on_loopback,
    )


def _end_with_the_parent(order: signal.Signals) -> None:
    """End this process with its parent: without engines it would only keep the port."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        signal.raise_signal(order)
        time.sleep(_ORPHAN_SECONDS)
        os._exit(1)
