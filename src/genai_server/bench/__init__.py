"""Measures OpenAI-style servers from outside, and the bare library beside them. Independent of this server's code."""
