"""The ASGI entry point: for `uvicorn genai_server.asgi:app`, and for the API processes of `genai-server serve`."""

import multiprocessing
import sys

from uvicorn.config import STARTUP_FAILURE

from genai_server.cli.serve.composition import app_from_environment
from genai_server.errors import ConfigurationError

try:
    app = app_from_environment()
except ConfigurationError as error:
    sys.stderr.write(f"genai-server: {error}\n")
    # uvicorn starts a worker again unless it ends with this status.
    sys.exit(2 if multiprocessing.parent_process() is None else STARTUP_FAILURE)
