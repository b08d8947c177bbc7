"""Benchmarks of OpenAI-style HTTP servers (`genai-server bench`), measured from outside by sending requests, and
compared with onnxruntime-genai used directly without a server. The benchmark does not use this server's own API code,
so that it treats all servers alike.
"""
