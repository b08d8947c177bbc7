"""An OpenAI-style HTTP inference server for onnxruntime-genai models."""

from importlib.metadata import version

__version__ = version("genai-server")
