"""Helpers of the scripts that make and measure model directories; never needed to serve."""

import os

# As the package genai_server does, which `.venv-models` does not have: before ONNX Runtime is imported, for child
# processes too.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
