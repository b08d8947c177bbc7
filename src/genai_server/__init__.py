"""An OpenAI-style HTTP inference server for onnxruntime-genai models."""

import os
from importlib.metadata import version

# Every entry imports this package first, and children inherit the variable. ONNX Runtime reads it when it is imported,
# and without it writes a device id below HOME at once. An engine changes it if GENAI_TELEMETRY says so.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

__version__ = version("genai-server")
