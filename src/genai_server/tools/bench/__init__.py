"""Benchmarks of OpenAI-style servers from outside, compared with the bare library. Independent of the server's
code.
"""
