"""Measures OpenAI-style servers from outside, and the bare library for comparison. Independent of the server's code."""
