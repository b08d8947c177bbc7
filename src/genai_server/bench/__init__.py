"""Measures OpenAI-style servers from outside, and the bare library beside them. Knows nothing of this server."""
