"""Imports what a start of the server imports, so that Python keeps it compiled, even if PYTHONDONTWRITEBYTECODE is set:
without that each start takes seconds more. uv compiles nothing when it installs.
"""

import sys
from importlib import import_module

sys.dont_write_bytecode = False
for name in (
    "genai_server.cli.serve.serve_command",
    "genai_server.cli.serve.server_lifetime",
    "genai_server.cli.serve.composition",
    "genai_server.supervisor.process",
    "genai_server.engine.process",
    "genai_server.engine.runners.batched",
    "genai_server.engine.model.native_trial",
    "genai_server.engine.model.weights",
    "uvicorn.lifespan.on",
    "uvicorn.loops.auto",
    "uvicorn.protocols.http.httptools_impl",
):
    try:
        import_module(name)
    except ImportError:  # a library that this device or system does not need
        continue
