"""`genai-server launch`: starts coding agents that work with a model of this server."""
