"""A genai-server in this process, where a test can reach into its API side; the engine has a process of its own."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import uvicorn

from genai_server.cli.serve.composition import attached_app
from genai_server.config import load_settings
from genai_server.supervisor.supervisor import Supervisor
from tests.running_server import free_port, wait_until


@contextmanager
def server_here(**values: str) -> Iterator[httpx.Client]:
    """A client of a server over the scripted device, with these settings."""
    settings = load_settings({"device": "scripted", **values}, environ={}, dotenv=None)
    supervisor = Supervisor(settings)
    supervisor.start()
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(attached_app(settings, supervisor.folder), port=port, log_config=None))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20) as client:
            wait_until(lambda: client.get("/readyz").status_code == 200)
            yield client
    finally:
        server.should_exit = True
        thread.join()
        supervisor.stop()
