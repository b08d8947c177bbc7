"""Reads the profiles that ONNX Runtime has written for an engine, analyses them, and shows them as text, HTML page or
Chrome trace. ONNX Runtime itself is not needed.
"""
