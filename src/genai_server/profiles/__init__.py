"""Reads and analyses ONNX Runtime's profiles, and shows them as text, page or trace. Pure; needs no ONNX Runtime."""
