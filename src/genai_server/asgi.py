"""The ASGI entry point: for `uvicorn genai_server.asgi:app`, and for the API processes of `genai-server serve`."""

import sys

from genai_server.cli.serve.composition import app_from_environment, status_of_a_failed_start
from genai_server.errors import ConfigurationError

try:
    app = app_from_environment()
except ConfigurationError as error:
    sys.stderr.write(f"genai-server: {error}\n")
    sys.exit(status_of_a_failed_start())
