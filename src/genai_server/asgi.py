"""The ASGI app, for other servers than `genai-server serve`: `uvicorn genai_server.asgi:app` or gunicorn with uvicorn's
workers. Importing this module reads the settings, and ends the process if they are wrong.
"""

import sys

from genai_server.config.environment import export_metrics
from genai_server.errors import ConfigurationError
from genai_server.system.processes import open_runtime_folder, parent_of_workers

try:
    if (parent := parent_of_workers()) is not None:
        export_metrics(open_runtime_folder(parent))  # before prometheus-client is imported
    from genai_server.cli.serve.composition import standalone_app

    app = standalone_app()
except ConfigurationError as error:
    from genai_server.cli.serve.composition import status_of_a_failed_start

    sys.stderr.write(f"genai-server: {error}\n")
    sys.exit(status_of_a_failed_start())
