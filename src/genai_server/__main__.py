"""Runs the command line `genai-server` as `python -m genai_server`."""

import sys

from genai_server.cli import main

sys.exit(main())
