"""Reads and analyses ONNX Runtime's profiles, and shows them as text, HTML page or trace, without ONNX Runtime."""
