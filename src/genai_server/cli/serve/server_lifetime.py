"""The lifetime of a server that `genai-server serve` starts, with its supervisor, engines and API processes, from the
checks of the settings to the exit status. `serve` runs all of it.
"""

import asyncio
import gc
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import uvicorn
from uvicorn import Config
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import ChangeReload, Multiprocess

import genai_server
from genai_server.cli.serve.attach import SupervisorThread, find_or_start
from genai_server.cli.serve.exit_status import CUT_OFF, DRAINED, NOTHING_LOADED, has_cut_off
from genai_server.cli.serve.loaders import ReadTexts
from genai_server.cli.serve.preflight import bind, check_server, lone_reloader
from genai_server.cli.serve.protocol import GuardedProtocol, GuardedWebSocket
from genai_server.cli.serve.shutdown import CLOSING, ENDING, ServerStop
from genai_server.cli.serve.welcome import welcome
from genai_server.config.environment import export_metrics, export_settings
from genai_server.config.settings import Settings
from genai_server.engine_client.supervisor import FindSupervisor
from genai_server.errors import ConfigurationError
from genai_server.messages.server_status import EngineStatus
from genai_server.model_files.speech_and_vision import any_takes_media
from genai_server.system.processes import open_runtime_folder

if TYPE_CHECKING:
    from starlette.types import ASGIApp

log = logging.getLogger(__name__)
# Most connections that wait to be accepted.
_BACKLOG = 2048
# Seconds after which a worker that does not respond is replaced. A busy machine may take many for its start.
_HEALTH_CHECK_TIMEOUT = 60
# Bytes of a message on a WebSocket beyond those of a body.
_SPARE_BYTES = 1024


def serve(settings: Settings, prepared: list["subprocess.Popen[bytes]"]) -> int:
    """Check the settings, start the server, and serve until a stop signal arrives. Returns the exit status of the
    command. Raises ConfigurationError for wrong settings.

    `prepared` holds the process of a supervisor (the process that starts engines) that was started in advance and waits
    for its launch message (supervisor_start.py).
    """
    if warning := lone_reloader(settings):
        log.warning("%s", warning)
        settings = settings.model_copy(update={"workers": 1})
    texts = check_server(settings)
    listener = listen(settings)
    with listener, _pid_file(settings.pid_file):
        return _serve_on(settings, listener, prepared, texts)


@contextmanager
def _pid_file(name: str) -> Iterator[None]:
    """Keep this process's id in the file `name` during a `with` block, and remove the file at its end. Nothing is
    written if `name` is "".

    Raises ConfigurationError if the file cannot be written.
    """
    path = Path(name)
    if name:
        try:
            path.write_text(f"{os.getpid()}\n", encoding="ascii")
        except OSError as error:
            raise ConfigurationError(f"GENAI_PID_FILE={name}: cannot be written: {error.strerror}") from None
    try:
        yield
    finally:
        if name:
            with suppress(OSError):
                path.unlink()


def _serve_on(
    settings: Settings, listener: socket.socket, prepared: list["subprocess.Popen[bytes]"], texts: ReadTexts
) -> int:
    """Start the supervisor and the API processes, and answer the connections to the socket `listener` until a stop
    signal arrives. Returns the exit status.

    `prepared` holds a supervisor process that was started in advance, and `texts` the text codecs that the checks of
    the settings have loaded.
    """
    folder = open_runtime_folder(os.getpid())
    stop = ServerStop(settings.drain_timeout + ENDING)
    stop.handle_signals()
    in_processes = settings.workers > 1 or settings.reload
    if in_processes:
        # The API processes get both through the environment. A process that is being started reads it, so that it must
        # not change from now on (seen: `Bad address`).
        export_settings(settings)
        export_metrics(folder)
    find = partial(find_or_start, settings, os.getpid(), prepared)
    supervisor = SupervisorThread(
        find,
        on_nothing_loaded=stop.nothing_loaded,
        on_started=lambda status: _welcome(settings, listener, status.engines, stop),
    )
    try:
        if in_processes:
            status = _serve_in_processes(settings, listener, folder, stop)
        else:
            status = _serve_in_this_process(settings, listener, folder, find, texts, stop)
    finally:
        supervisor.end()
    return NOTHING_LOADED if stop.no_model_loaded else status


def _welcome(settings: Settings, listener: socket.socket, engines: Sequence[EngineStatus], stop: ServerStop) -> None:
    """Print the welcome message with the state of the engines, if standard output is a terminal and `stop` has not been
    ordered meanwhile.
    """
    if sys.stdout.isatty() and not stop.order.is_set():
        with suppress(OSError):  # the terminal may be gone
            welcome(settings, listener.getsockname()[1], engines)


def listen(settings: Settings) -> socket.socket:
    """Return a socket that listens on the configured address and port, and log its URL. This is called before any
    process is started. Raises ConfigurationError if the address cannot be used.
    """
    listener = bind(settings, backlog=_BACKLOG)
    # asyncio disables Nagle's algorithm only if the socket names its protocol. Nagle's algorithm adds 40 ms to an
    # answer on a connection that is kept open.
    listener = socket.socket(listener.family, listener.type, socket.IPPROTO_TCP, listener.detach())
    shown = f"[{settings.host}]" if listener.family == socket.AF_INET6 else settings.host
    log.info("listening on %s://%s:%d", "https" if settings.tls_cert else "http", shown, listener.getsockname()[1])
    return listener


def _serve_in_this_process(
    settings: Settings,
    listener: socket.socket,
    folder: Path,
    find: FindSupervisor,
    texts: ReadTexts,
    stop: ServerStop,
) -> int:
    """Serve until `stop` is ordered, with this process as the only API process. Returns the exit status.

    `listener` is the listening socket, `folder` the server's runtime folder, `find` returns the supervisor's address,
    and `texts` are text codecs that were loaded before.
    """
    # Two seconds' work, which the parent of several API processes never needs; here the engines load in the meantime.
    gc.disable()
    from genai_server.apis.app import Attachment
    from genai_server.cli.serve.composition import attached_app

    gc.enable()
    if stop.order.is_set():
        log.info("stopped during the start")
        return DRAINED
    app = attached_app(settings, Attachment(folder, find), texts, on_loopback=settings.on_loopback)
    server = uvicorn.Server(_uvicorn_config(settings, app))

    def obey() -> None:
        stop.order.wait()
        server.should_exit = True

    threading.Thread(target=obey, name="stop", daemon=True).start()
    try:
        server.run(sockets=[listener])
    except SystemExit:  # raised by uvicorn, whose status STARTUP_FAILURE means something else here
        return NOTHING_LOADED
    return CUT_OFF if has_cut_off(folder, [os.getpid()]) else DRAINED


def _serve_in_processes(settings: Settings, listener: socket.socket, folder: Path, stop: ServerStop) -> int:
    """Serve with several API processes, or with one that is restarted when a source file changes (setting `reload`),
    until `stop` is ordered. Returns the exit status.

    `listener` is the listening socket, and `folder` the server's runtime folder.
    """
    config = _uvicorn_config(settings, "genai_server.cli.serve.composition:workers_app")
    listener.set_inheritable(True)
    if settings.reload:
        reloader = ChangeReload(config, target=uvicorn.Server(config).run, sockets=[listener])
        stop.use_stop_event(reloader.should_exit)
        reloader.run()
        workers = [(reloader.process.pid, reloader.process.exitcode)]
    else:
        parent = Multiprocess(config, [listener])
        stop.use_stop_event(parent.should_exit)
        stop.handle_signals_for(lambda: [process.pid for process in parent.processes])
        parent.run()
        workers = [(process.pid, process.exitcode) for process in parent.processes]
    stop.handle_signals()
    if any(status == STARTUP_FAILURE for _, status in workers):
        return NOTHING_LOADED
    return CUT_OFF if stop.has_killed or has_cut_off(folder, [pid for pid, _ in workers]) else DRAINED


def _uvicorn_config(settings: Settings, app: "ASGIApp | str") -> uvicorn.Config:
    return HandshakeConfig(
        app,
        factory=isinstance(app, str),
        host=settings.host,
        port=settings.port,
        workers=settings.workers,
        reload=settings.reload,
        # Instead of the working directory, uvicorn's default, which may hold whole virtual environments.
        reload_dirs=str(Path(genai_server.__file__).parent) if settings.reload else None,
        log_config=None,
        log_level=settings.log_level,
        # uvicorn's access log has whole URLs, whose query may hold a key. http/telemetry/request_record.py logs
        # requests instead.
        access_log=False,
        # A partial can be pickled for the processes of WORKERS; a class made here cannot.
        http=cast(type[asyncio.Protocol], partial(GuardedProtocol, stall_timeout=settings.stall_timeout)),
        ws=cast(
            type[asyncio.Protocol],
            partial(GuardedWebSocket, stall_timeout=settings.stall_timeout, body_timeout=settings.body_timeout),
        ),
        # A message is a body; one that is a little too large is refused as such.
        ws_max_size=_max_body_bytes(settings) + _SPARE_BYTES,
        ws_per_message_deflate=False,
        proxy_headers=bool(settings.forwarded_allow_ips),
        forwarded_allow_ips=settings.forwarded_allow_ips,
        h11_max_incomplete_event_size=settings.max_header_bytes,
        timeout_keep_alive=settings.idle_timeout,
        ssl_certfile=settings.tls_cert or None,
        ssl_keyfile=settings.tls_key or None,
        timeout_graceful_shutdown=CLOSING,
        timeout_worker_healthcheck=_HEALTH_CHECK_TIMEOUT,
    )


def _max_body_bytes(settings: Settings) -> int:
    """Return the maximum size of a request body in bytes, by the settings. A server with a model that takes images or
    audio allows larger bodies than others.
    """
    if any_takes_media(settings.served.values()):
        return max(settings.max_body_bytes, settings.max_media_body_bytes)
    return settings.max_body_bytes


class HandshakeConfig(Config):
    """uvicorn's configuration, extended by a time limit for TLS handshakes: `timeout_keep_alive` seconds, the same
    limit that applies to the head of a request.
    """

    def get_loop_factory(self) -> Callable[[], asyncio.AbstractEventLoop] | None:
        """Return the factory of the event loop in which uvicorn runs; None for asyncio's default. Called by uvicorn."""
        make = super().get_loop_factory()
        return make if make is None or not self.is_ssl else partial(_loop_with_limit, make, self.timeout_keep_alive)


def _loop_with_limit(make: Callable[[], asyncio.AbstractEventLoop], seconds: float) -> asyncio.AbstractEventLoop:
    loop = make()
    # uvicorn has no option for this argument.
    loop.create_server = partial(loop.create_server, ssl_handshake_timeout=seconds)  # type: ignore[method-assign]
    return loop
