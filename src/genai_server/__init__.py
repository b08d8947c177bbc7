"""genai-server, an OpenAI-style HTTP inference server for models of onnxruntime-genai."""

import os
from importlib.metadata import version

# Every entry point imports this package first, and child processes inherit the variable. ONNX Runtime reads it on
# import; without it, it writes a device id below HOME. An engine changes it if GENAI_TELEMETRY is set.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

__version__ = version("genai-server")
