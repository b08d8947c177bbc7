"""The ASGI entry point: for `uvicorn genai_server.asgi:app`, and for the API processes of `genai-server serve`."""

import sys

from genai_server.config.environment import engines_to_attach, export_metrics
from genai_server.errors import ConfigurationError
from genai_server.runtime_folder import open_runtime_folder, parent_of_workers

try:
    if engines_to_attach() is None and (parent := parent_of_workers()) is not None:
        export_metrics(open_runtime_folder(parent))  # before prometheus-client is imported
    from genai_server.cli.serve.composition import app_from_environment

    app = app_from_environment()
except ConfigurationError as error:
    from genai_server.cli.serve.composition import status_of_a_failed_start

    sys.stderr.write(f"genai-server: {error}\n")
    sys.exit(status_of_a_failed_start())
