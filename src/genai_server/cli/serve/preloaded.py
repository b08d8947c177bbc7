"""Imports all that an API process needs; for the process that they are forked from.

What is imported here stays out of garbage collections, so that its memory remains shared.
"""

import gc

gc.disable()

import uvicorn.lifespan.on  # noqa: E402
import uvicorn.protocols.http.httptools_impl  # noqa: E402, F401
import uvloop  # noqa: E402, F401

import genai_server.cli.serve.composition  # noqa: E402
import genai_server.cli.serve.protocol  # noqa: E402
import genai_server.cli.serve.websocket  # noqa: E402, F401

gc.freeze()
gc.enable()
